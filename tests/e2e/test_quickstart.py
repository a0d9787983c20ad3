"""The quick start, whole: it learns, it stops early, and it says so."""

from pathlib import Path

import pytest

from recipe.async_dapo.record import keys
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import QUICK_STEPS
from recipe.async_dapo_lab.report.headline import headline
from recipe.async_dapo_lab.report.run import Run

from ..support.harness import run_module


def quick_start(assets: Assets, name: str, *arguments: str) -> tuple[Path, str]:
    """Returns its folder, and what it said."""
    folder = assets.folder.parent / name  # finds its model there
    limit = ("--timeout-s", "3000")  # before pytest's own limit, which would leave its processes
    return folder, run_module("recipe.async_dapo_lab.quickstart", "--output", str(folder), *arguments, *limit)


@pytest.fixture(scope="module")
def run(assets: Assets) -> Run:
    folder, said = quick_start(assets, "quickstart")
    for name in ("train.log", "metrics.jsonl", "report.html"):
        assert Path(folder, name).stat().st_size > 0
    run = Run.load(folder)
    assert f"\n{headline(run)}\n" in said
    return run


def test_given_the_quick_start_when_it_trains_then_the_model_learns(run):
    (_, before), *_, (_, after) = run.accuracy()
    assert 0.2 <= before <= 0.6
    assert after >= before + 0.3


def test_given_the_quick_start_when_it_trains_then_filter_and_stop_act(run):
    assert len(run.steps) == QUICK_STEPS
    assert run.ledger()["filtered"] > 0
    assert run.total(keys.INTERRUPTED) > 0
    assert run.total("async_dapo/partial/resumed_groups") > 0
    assert run.total(keys.TOKENS_DISCARDED) == 0


@pytest.mark.nightly
def test_given_compare_when_both_have_trained_then_one_is_measured_against_the_other(assets: Assets):
    folder, said = quick_start(assets, "compared", "--compare", "--steps", "3")
    assert "; measured " in said and "x of verl_sync" in said
    assert 'id="side-by-side"' in Path(folder, "report.html").read_text()
