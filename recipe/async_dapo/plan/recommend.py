"""Which rows to run: three choices between fresh tokens and fast steps, each with its reason, as Hydra overrides."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import RolloutStrategy
from .sweep import Row

NOISE = 0.02  # of a step's seconds: the difference of a few simulated steps under another seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a choice allows of the tokens it trains on."""

    off_policy: float = 1.0  # share of tokens from older versions [0-1]
    staleness: float | None = None  # mean [versions]

    def allow(self, row: Row) -> bool:
        return row.mean.off_policy_ratio <= self.off_policy and (
            self.staleness is None or row.mean.staleness_mean <= self.staleness
        )

    def __str__(self) -> str:
        staleness = "" if self.staleness is None else f", mean staleness <= {self.staleness:g}"
        return "of all rows" if self == Limits() else f"with off-policy <= {self.off_policy:g}{staleness}"


FRESH, BALANCED, FASTEST = "fresh", "balanced", "fastest"
CHOICES = {
    FRESH: Limits(off_policy=0.2),
    BALANCED: Limits(off_policy=0.5, staleness=1.0),
    FASTEST: Limits(),
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The choices that some row meets, and what to be wary of."""

    choices: dict[str, Recommendation]
    warnings: tuple[str, ...] = ()

    @property
    def name_to_paste(self) -> str | None:
        return next((name for name in (BALANCED, FRESH, FASTEST) if name in self.choices), None)

    @property
    def to_paste(self) -> Recommendation | None:
        return None if self.name_to_paste is None else self.choices[self.name_to_paste]

    def names_of(self, row: Row) -> list[str]:
        return [name for name, choice in self.choices.items() if choice.row is row]


def recommend(rows: Sequence[Row], *, max_length_bias: float, max_off_policy: float, kv_room: int) -> Advice:
    """For each choice, the fastest row of this recipe within its limits whose trained lengths are natural.

    Rows within `NOISE` of the fastest count as equally fast; of those, one that frees the KV cache between rollouts is
    preferred, then the one with the fewest off-policy tokens.

    Args:
        kv_room: trajectories in flight that fill the KV caches at the mean context.
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
    choices = {}
    for name, limits in CHOICES.items():
        if within := [row for row in allowed if limits.allow(row)]:
            best = _best(within)
            choices[name] = Recommendation(row=best, reason=_reason(best, within, limits, kv_room))
    advice = Advice(choices=choices)
    return Advice(choices=choices, warnings=tuple(_warnings(rows, advice)))


def _best(rows: Sequence[Row]) -> Row:
    fastest = max(row.speed_up for row in rows)
    equals = [row for row in rows if row.speed_up >= (1 - NOISE) * fastest]
    return min(equals, key=lambda row: (_keeps_kv(row), row.mean.off_policy_ratio, -row.speed_up))


def _reason(best: Row, within: Sequence[Row], limits: Limits, kv_room: int) -> str:
    """Why this row, and not the next one."""
    parts = [f"the fastest {limits}"]
    others = [row for row in within if row.candidate.strategy != best.candidate.strategy]
    if others:
        parts = [f"{parts[0]}: {_compared(best, max(others, key=lambda row: row.speed_up))}"]
    else:
        parts[0] += "; no other strategy is"
    if faster := [row for row in within if row.speed_up > best.speed_up]:
        why = "frees the KV cache while the trainer runs" if _keeps_kv(faster[0]) > _keeps_kv(best) else "is fresher"
        parts.append(f"{len(faster)} more within the noise of {NOISE:.0%}, of which this one {why}")
    if best.candidate.concurrency is None:
        parts.append(f"the pool sizes itself: the KV caches hold {kv_room:,} at the mean context")
    else:
        parts.append(f"pool {best.candidate.concurrency:,}: the KV caches hold {kv_room:,} at the mean context")
    return "; ".join(parts)


def _compared(best: Row, other: Row) -> str:
    gain = best.speed_up / other.speed_up - 1
    name = other.candidate.system.name
    if abs(gain) <= NOISE:
        wasted = f", but wastes {other.mean.waste_ratio:.0%}" if other.mean.waste_ratio > NOISE else ""
        return f"`{name}` is as fast{wasted}"
    wasted = f", which wastes {other.mean.waste_ratio:.0%} of its tokens" if other.mean.waste_ratio > NOISE else ""
    return f"{gain:+.0%} over `{name}`{wasted}"


def _warnings(rows: Sequence[Row], advice: Advice) -> list[str]:
    warnings: list[str] = []
    pasted = advice.to_paste
    if pasted is None:
        return warnings
    if advice.name_to_paste != BALANCED:
        warnings.append(f"no row is {BALANCED} ({CHOICES[BALANCED]}); a smaller pool or batch in flight would be")
    baselines = [row for row in rows if row.candidate.is_baseline]
    if baselines:
        best = max(baselines, key=lambda row: row.speed_up)
        lead = best.speed_up / pasted.row.speed_up - 1
        if lead > NOISE:
            warnings.append(
                f"a baseline wins: `{best.candidate.system.name}` is {lead:.0%} faster than what is recommended "
                f"(off-policy {best.mean.off_policy_ratio:.2f}, waste {best.mean.waste_ratio:.2f}, trained / natural "
                f"length {best.length_bias:.2f})"
            )
        elif pasted.row.speed_up < (1 + NOISE) * rows[0].speed_up:
            warnings.append(f"hardly anything to gain: `{rows[0].candidate.system.name}` is as fast")
    return warnings


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Rows than which none is both faster and fresher, from the freshest to the fastest."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.mean.off_policy_ratio, -row.speed_up)):
        if not front or row.speed_up > front[-1].speed_up:
            front.append(row)
    return front


def _keeps_kv(row: Row) -> bool:
    """Whether the KV cache takes memory from training."""
    return row.candidate.strategy == RolloutStrategy.PARTIAL_STALE_KV
