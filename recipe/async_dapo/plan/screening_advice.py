"""What screening would save beside the recommended row, and what it would change about the data."""

from collections.abc import Sequence

from ..config import AsyncDAPOConfig
from ..core.screening import NO_SCREENING
from .candidates import Candidate
from .scenario import Scenario
from .sweep import Row
from .training_frequency import trained_share

SHOWN_RATES = (0.02, 0.1, 0.5)  # of prompts, as examples


def screening_advice(rows: Sequence[Row], chosen: Row, scenario: Scenario) -> str | None:
    """What screening would save beside the recommended row, and what it would change about the data; None where no row
    shows it.

    Screened rows have pools that size themselves, so they are compared with the row that differs in nothing else.
    """
    alike = [row for row in rows if _is_compared(row.candidate, chosen.candidate)]
    screened = next((row for row in alike if row.candidate.changes_data), None)
    whole = next((row for row in alike if not row.candidate.changes_data), None)
    if screened is None or whole is None:
        return None
    screening, n = _options(screened, scenario).screening, scenario.rollout_n
    trained = ", ".join(
        f"{100 * trained_share(rate, n, screening):.0f} % with a pass rate of {rate:g} "
        f"({100 * trained_share(rate, n, NO_SCREENING):.0f} %)"
        for rate in SHOWN_RATES
    )
    saved = screened.mean.generated_per_group / whole.mean.generated_per_group
    seconds = screened.mean.step_s / whole.mean.step_s
    return (
        f"With async_dapo.screening.samples={screening.samples}, compared with `{whole.candidate.system.name}`: "
        f"{saved:.2f} x the generated tokens a trained group, {seconds:.2f} x the seconds a step. It changes the data: "
        f"of a prompt's groups it trains {trained}; without it as in brackets. See docs/selection.md."
    )


def _is_compared(candidate: Candidate, chosen: Candidate) -> bool:
    is_alike = (candidate.strategy, candidate.stop_rule) == (chosen.strategy, chosen.stop_rule)
    return is_alike and candidate.concurrency is None and not candidate.is_baseline and not candidate.changes_loss


def _options(row: Row, scenario: Scenario) -> AsyncDAPOConfig:
    return row.candidate.system.options(
        train_batch_size=scenario.train_batch_size,
        rollout_n=scenario.rollout_n,
        prompt_len_tok=scenario.prompt_len_tok,
        max_response_length=scenario.max_response_length,
    )
