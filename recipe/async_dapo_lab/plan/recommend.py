"""Which row to run: the fastest among those with fresh enough tokens and natural lengths, as Hydra overrides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...async_dapo.config.values import RolloutStrategy
from ...async_dapo.core.staleness import HEALTHY_MEAN_STALENESS
from .candidates import CAP, Candidate
from .sweep import Row
from .systems import VERL, VERL_COLOCATE_ASYNC

NOISE = 0.02  # of a step's seconds: the difference of a few simulated steps under another seed
EQUAL = 0.02  # of tokens: off-policy shares that differ by no more are equal
FRESH_SHARE = 0.2  # off-policy, where verl colocate_async is not there to compare with
CAP_ABOVE = 0.1  # the share that a cap leads to, in most settings of docs/evidence/grid.md by more
MOST_LENGTH_BIAS = 0.03  # |trained / natural mean length - 1| of what is recommended
FRESH, BALANCED = "fresh", "balanced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The choices that some row meets, and what to be wary of.

    Attributes:
        choices: by name; the balanced one is to be pasted before the fresh one.
        pasted: name of a choice; None where there is none, or verl's own mode is as good.
        verls_own: that mode's row.
        compared: with verl colocate_async, at its off-policy share.
    """

    choices: dict[str, Row]
    pasted: str | None = None
    verls_own: Row | None = None
    compared: str = ""
    warnings: tuple[str, ...] = ()


def overrides_of(row: Row) -> list[str]:
    """Ready to paste behind the training command."""
    options = {"async_dapo.rollout_strategy": None, "async_dapo.stop_rule": None} | dict(row.candidate.system.overrides)
    return [f"{key}={'null' if value is None else value}" for key, value in options.items()]


def recommend(rows: Sequence[Row]) -> Advice:
    """For each choice, the fastest row of this recipe within its limits whose trained lengths are natural.

    *Balanced* allows a healthy mean staleness, *fresh* as many off-policy tokens as verl colocate_async trains on. Rows
    within `NOISE` of the fastest count as equally fast; of those, one that needs no host memory is preferred, then the
    recipe's default, then the one with the fewest off-policy tokens. No row is to be pasted if a mode of verl's own is
    as fast and as fresh.
    """
    limits: dict[str, Callable[[Row], bool]] = {
        BALANCED: lambda row: row.mean.staleness_mean <= HEALTHY_MEAN_STALENESS,
        FRESH: lambda row: row.mean.off_policy_ratio <= _fresh_share(rows),
    }
    natural = [row for row in rows if not row.candidate.is_baseline and abs(row.length_bias - 1) <= MOST_LENGTH_BIAS]
    within = {name: [row for row in natural if allows(row)] for name, allows in limits.items()}
    choices = {name: _best(some) for name, some in within.items() if some}
    rivals = {name: _as_good(row, rows) for name, row in choices.items()}
    pasted = next((name for name, rival in rivals.items() if rival is None), None)
    return Advice(
        choices=choices,
        pasted=pasted,
        verls_own=next(iter(rivals.values())) if rivals and pasted is None else None,
        compared=_compared_with_verl(rows, choices.get(FRESH)),
        warnings=tuple(_warnings(rows, choices, pasted)),
    )


def at_equal_share(rows: Sequence[Row]) -> list[Candidate]:
    """This recipe's default with no more off-policy tokens than verl colocate_async, where it has more by itself: speed
    is compared on equal terms."""
    colocate = _colocate_of(rows)
    default = next((row for row in rows if row.candidate.is_default), None)
    if colocate is None or default is None or default.mean.off_policy_ratio <= _fresh_share(rows):
        return []
    cap = round(colocate.mean.off_policy_ratio + CAP_ABOVE, 2)
    system = default.candidate.system
    capped = replace(system.with_overrides({CAP: cap}), name=f"{system.name}, share capped at {cap:g}")
    return [replace(default.candidate, system=capped)] if cap < 1 else []


def _colocate_of(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.candidate.system.name == VERL_COLOCATE_ASYNC), None)


def _fresh_share(rows: Sequence[Row]) -> float:
    colocate = _colocate_of(rows)
    return FRESH_SHARE if colocate is None else colocate.mean.off_policy_ratio + EQUAL


def _as_good(row: Row, rows: Sequence[Row]) -> Row | None:
    """The fastest mode of verl's own that is as fast as a row, at an equal off-policy share or a lower one."""
    as_good = [
        one
        for one in rows
        if one.candidate.is_baseline
        and one.candidate.system.name.startswith(VERL)
        and one.speed_up >= (1 - NOISE) * row.speed_up
        and one.mean.off_policy_ratio <= row.mean.off_policy_ratio + EQUAL
    ]
    return max(as_good, key=lambda one: one.speed_up, default=None)


def _compared_with_verl(rows: Sequence[Row], fresh: Row | None) -> str:
    colocate = _colocate_of(rows)
    if colocate is None:
        return ""
    share = f"{VERL_COLOCATE_ASYNC}'s off-policy share of {colocate.mean.off_policy_ratio:.2f}"
    if fresh is None:
        return f"no row of this recipe has {share} or less"
    gain = fresh.speed_up / colocate.speed_up - 1
    speeds = f"{fresh.mean.tokens_per_s_per_gpu:.0f} tok/s/GPU against {colocate.mean.tokens_per_s_per_gpu:.0f}"
    name = fresh.candidate.system.name
    if gain > NOISE:
        return f"at {share}, `{name}` is {gain:.0%} faster: {speeds}"
    return f"at {share}, no row of this recipe is faster; the fastest is `{name}`: {speeds}"


def _best(rows: Sequence[Row]) -> Row:
    fastest = max(row.speed_up for row in rows)
    equals = [row for row in rows if row.speed_up >= (1 - NOISE) * fastest]
    return min(
        equals,
        key=lambda row: (
            _needs_host_memory(row),
            not row.candidate.is_default,
            row.mean.off_policy_ratio,
            -row.speed_up,
        ),
    )


def _warnings(rows: Sequence[Row], choices: dict[str, Row], pasted: str | None) -> list[str]:
    if pasted is None:
        return []
    warnings = []
    if pasted != BALANCED:
        warnings.append(
            f"at {BALANCED}'s off-policy share a mode of verl's own is as fast"
            if BALANCED in choices
            else f"no row has a mean staleness of {HEALTHY_MEAN_STALENESS:g} or less; a smaller batch in flight would"
        )
    best = max(rows, key=lambda row: row.candidate.is_baseline * row.speed_up)
    lead = best.speed_up / choices[pasted].speed_up - 1
    if best.candidate.is_baseline and lead > NOISE:
        warnings.append(
            f"a baseline wins: `{best.candidate.system.name}` is {lead:.0%} faster than what is recommended, with an "
            f"off-policy share of {best.mean.off_policy_ratio:.2f}, waste of {best.mean.waste_ratio:.2f} and trained "
            f"over natural length of {best.length_bias:.2f}"
        )
    return warnings


def _needs_host_memory(row: Row) -> bool:
    """Whether KV is kept there."""
    return row.candidate.strategy == RolloutStrategy.PARTIAL_STALE_KV
