"""Figures of a run in words, and the metrics that lines and reports are made of."""

from docs.declared import metrics
from recipe.async_dapo.record import keys
from recipe.async_dapo.record.keys import PREFIX
from recipe.async_dapo.record.words import accuracy_of


def test_accuracy_is_the_mean_over_data_sources_and_no_best_of_n() -> None:
    values = {"val-core/a/acc/mean@4": 0.2, "val-core/b/acc/mean@4": 0.6, "val-core/a/acc/best@4/mean": 1.0}
    assert accuracy_of(values | {"val-core/a/reward/mean@4": -1.0}) == 0.4
    assert accuracy_of({"val-core/a/reward/mean@4": -1.0}) == -1.0
    assert accuracy_of({"critic/score/mean": 1.0}) is None


def test_metrics_of_this_recipe_that_lines_and_reports_read_exist() -> None:
    ours = {
        value.removeprefix(PREFIX)
        for value in vars(keys).values()
        if isinstance(value, str) and value.startswith(PREFIX) and value != PREFIX
    }
    wanted = {name for name in ours if not name.endswith("/")}
    wanted |= {f"ledger/{term}" for term in keys.LEDGER_TERMS}
    wanted |= {f"staleness/tokens/{bucket}" for bucket in keys.STALENESS_BUCKETS}
    assert len(wanted) > 25 and wanted <= metrics()
