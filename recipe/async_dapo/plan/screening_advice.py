"""What screening would save beside the recommended row, and what it would change about the data."""

from collections.abc import Sequence

from ..config import AsyncDAPOConfig
from ..core.screening import NO_SCREENING
from .scenario import Scenario
from .sweep import Row
from .training_frequency import trained_share

SHOWN_RATES = (0.02, 0.1, 0.5)  # of prompts, as examples


def screening_advice(rows: Sequence[Row], chosen: Row, scenario: Scenario) -> str | None:
    """What screening would save beside the recommended row, and what it would change about the data; None where no row
    shows it."""
    for row in rows:
        asked, other = chosen.candidate, row.candidate
        if not other.changes_data or (other.strategy, other.stop_rule) != (asked.strategy, asked.stop_rule):
            continue
        screening, n = _options(row, scenario).screening, scenario.rollout_n
        trained = ", ".join(
            f"{100 * trained_share(rate, n, screening):.0f} % with a pass rate of {rate:g} "
            f"({100 * trained_share(rate, n, NO_SCREENING):.0f} %)"
            for rate in SHOWN_RATES
        )
        saved = row.mean.generated_per_group / chosen.mean.generated_per_group
        seconds = row.mean.step_s / chosen.mean.step_s
        return (
            f"With async_dapo.screening.samples={screening.samples}: {saved:.2f} x the generated tokens a trained "
            f"group, {seconds:.2f} x the seconds a step. It changes the data: of a prompt's groups "
            f"it trains {trained}; without it as in brackets. See docs/selection.md."
        )
    return None


def _options(row: Row, scenario: Scenario) -> AsyncDAPOConfig:
    return row.candidate.system.options(
        train_batch_size=scenario.train_batch_size,
        rollout_n=scenario.rollout_n,
        prompt_len_tok=scenario.prompt_len_tok,
        max_response_length=scenario.max_response_length,
    )
