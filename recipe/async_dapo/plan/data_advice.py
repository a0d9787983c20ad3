"""What screening and prompts chosen by history would save beside the recommended row, and what they would change about
the data."""

from collections.abc import Callable, Sequence

from ..core.screening import NO_SCREENING
from .candidates import Candidate
from .scenario import Scenario
from .sweep import Row
from .training_frequency import drawn_share, trained_share

SHOWN_RATES = (0.02, 0.1, 0.5)  # of prompts, as examples


def screening_advice(rows: Sequence[Row], chosen: Row, scenario: Scenario) -> str | None:
    """None where no row shows it."""
    pair = _compared(rows, chosen, "async_dapo.screening.samples")
    if pair is None:
        return None
    whole, screened = pair
    screening, n = screened.candidate.system.options(scenario).screening, scenario.rollout_n
    trained = _examples(
        lambda rate: 100 * trained_share(rate, n, screening), lambda rate: 100 * trained_share(rate, n, NO_SCREENING)
    )
    return (
        f"With async_dapo.screening.samples={screening.samples}, {_saving(whole, screened)} It changes the data: "
        f"of a prompt's groups it trains {trained}; without it as in brackets. See docs/selection.md."
    )


def history_advice(rows: Sequence[Row], chosen: Row, scenario: Scenario) -> str | None:
    """None where no row shows it."""
    pair = _compared(rows, chosen, "async_dapo.selection.by")
    if pair is None:
        return None
    whole, selected = pair
    exploration, n = selected.candidate.system.options(scenario).selection.exploration, scenario.rollout_n
    drawn = _examples(lambda rate: 100 * drawn_share(rate, n, exploration))
    return (
        f"With async_dapo.selection.by=history, at the second visit to the prompts, {_saving(whole, selected)} It "
        f"changes the data: at that visit it draws {drawn} of the prompts. See docs/selection.md."
    )


def _compared(rows: Sequence[Row], chosen: Row, key: str) -> tuple[Row, Row] | None:
    """The row that sets the option, behind the one that differs in nothing else: its pool sizes itself."""
    alike = [row for row in rows if _is_alike(row.candidate, chosen.candidate)]
    changed = next((row for row in alike if key in row.candidate.system.overrides), None)
    whole = next((row for row in alike if not row.candidate.changes_data), None)
    return None if changed is None or whole is None else (whole, changed)


def _is_alike(candidate: Candidate, chosen: Candidate) -> bool:
    is_alike = (candidate.strategy, candidate.stop_rule) == (chosen.strategy, chosen.stop_rule)
    return is_alike and candidate.concurrency is None and not candidate.is_baseline and not candidate.changes_loss


def _saving(whole: Row, changed: Row) -> str:
    saved = changed.mean.generated_per_group / whole.mean.generated_per_group
    seconds = changed.mean.step_s / whole.mean.step_s
    return (
        f"compared with `{whole.candidate.system.name}`: {saved:.2f} x the generated tokens a trained group, "
        f"{seconds:.2f} x the seconds a step."
    )


def _examples(percent: Callable[[float], float], without: Callable[[float], float] | None = None) -> str:
    def bracket(rate: float) -> str:
        return "" if without is None else f" ({without(rate):.0f} %)"

    return ", ".join(f"{percent(rate):.0f} % with a pass rate of {rate:g}{bracket(rate)}" for rate in SHOWN_RATES)
