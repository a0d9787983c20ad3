"""Which row to run: the fastest that trains on what the policy answers, as Hydra overrides."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import AsyncDAPOConfig, RolloutStrategy
from ..core.screening import NO_SCREENING
from .scenario import Scenario
from .sweep import Row
from .training_frequency import trained_share

SHOWN_RATES = (0.02, 0.1, 0.5)  # of prompts, as examples
EQUALLY_FAST = 0.98  # of the fastest; the noise of a few steps is of this size


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    row: Row
    reason: str

    @property
    def overrides(self) -> list[str]:
        """Ready to paste behind the training command."""
        options = {"async_dapo.rollout_strategy": None, "async_dapo.stop_rule": None} | dict(
            self.row.candidate.system.overrides
        )
        lines = [f"{key}={'null' if value is None else value}" for key, value in options.items()]
        if _keeps_kv(self.row):
            lines.append("actor_rollout_ref.rollout.free_cache_engine=False")
        return lines


def recommend(rows: Sequence[Row], *, max_length_bias: float, max_off_policy: float) -> Recommendation | None:
    """The fastest row of this recipe whose trained lengths are natural and whose tokens are fresh enough.

    None if no row is. Rows within two per cent of the fastest count as equally fast; of those, one that frees the KV
    cache between rollouts is preferred, then the one with the fewest off-policy tokens.
    """
    allowed = [
        row
        for row in rows
        if not row.candidate.is_baseline
        and not row.candidate.changes_loss
        and not row.candidate.changes_data
        and abs(row.length_bias - 1) <= max_length_bias
        and row.mean.off_policy_ratio <= max_off_policy
    ]
    if not allowed:
        return None
    fastest = max(row.speed_up for row in allowed)
    equals = [row for row in allowed if row.speed_up >= EQUALLY_FAST * fastest]
    best = min(equals, key=lambda row: (_keeps_kv(row), row.mean.off_policy_ratio, -row.speed_up))
    return Recommendation(
        row=best,
        reason=f"{best.speed_up:.2f}x the trained tokens per second of {rows[0].candidate.system.name}, off-policy "
        f"share {best.mean.off_policy_ratio:.2f}, trained / natural length {best.length_bias:.2f}",
    )


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


def _keeps_kv(row: Row) -> bool:
    """Whether the KV cache takes memory from training."""
    return row.candidate.strategy == RolloutStrategy.PARTIAL_STALE_KV
