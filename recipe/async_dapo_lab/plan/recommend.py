"""Which rows to run: three choices between fresh tokens and fast steps, each with its reason, as Hydra overrides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...async_dapo.core.staleness import HEALTHY_MEAN_STALENESS
from .candidates import CAP, Candidate
from .sweep import Row
from .systems import VERL, VERL_COLOCATE_ASYNC

NOISE = 0.02  # of a step's seconds: the difference of a few simulated steps under another seed
EQUAL = 0.02  # of tokens: off-policy shares that differ by no more are equal
FRESH_SHARE = 0.2  # off-policy, where verl colocate_async is not there to compare with
CAP_ABOVE = 0.1  # the share that a cap leads to, in most settings of docs/evidence/grid.md by more


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
        if self == Limits():
            return "of all rows"
        off_policy = f"off-policy <= {self.off_policy:.2g}" if self.off_policy < 1 else ""
        staleness = "" if self.staleness is None else f"mean staleness <= {self.staleness:g}"
        return f"with {', '.join(filter(None, (off_policy, staleness)))}"


FRESH, BALANCED, FASTEST = "fresh", "balanced", "fastest"


def _limits_of(rows: Sequence[Row]) -> dict[str, Limits]:
    """What each choice allows: as many off-policy tokens as verl colocate_async trains on, a healthy mean staleness,
    anything."""
    colocate = _row_of(rows, VERL_COLOCATE_ASYNC)
    fresh = FRESH_SHARE if colocate is None else colocate.mean.off_policy_ratio + EQUAL
    return {
        FRESH: Limits(off_policy=fresh),
        BALANCED: Limits(staleness=HEALTHY_MEAN_STALENESS),
        FASTEST: Limits(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    row: Row
    reason: str
    trainer_overrides: tuple[str, ...] = ()  # without which trainer and engines do not fit

    @property
    def overrides(self) -> list[str]:
        """Ready to paste behind the training command."""
        options = {"async_dapo.rollout_strategy": None, "async_dapo.stop_rule": None} | dict(
            self.row.candidate.system.overrides
        )
        lines = [f"{key}={'null' if value is None else value}" for key, value in options.items()]
        if self.row.candidate.keeps_kv:
            lines.append("actor_rollout_ref.rollout.free_cache_engine=False")
        return [*lines, *self.trainer_overrides]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The choices that some row meets, and what to be wary of.

    Attributes:
        name_to_paste: of the choice; None where there is none, or verl's own mode is as good.
        verls_own: that mode's row.
        compared: with verl colocate_async, at its off-policy share.
    """

    choices: dict[str, Recommendation]
    name_to_paste: str | None = None
    verls_own: Row | None = None
    compared: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def to_paste(self) -> Recommendation | None:
        return None if self.name_to_paste is None else self.choices[self.name_to_paste]

    def names_of(self, row: Row) -> list[str]:
        return [name for name, choice in self.choices.items() if choice.row is row]


def recommend(
    rows: Sequence[Row],
    *,
    max_length_bias: float,
    max_off_policy: float,
    kv_room: int,
    trainer_overrides: tuple[str, ...] = (),
) -> Advice:
    """For each choice, the fastest row of this recipe within its limits whose trained lengths are natural.

    Rows within `NOISE` of the fastest count as equally fast; of those, one that frees the KV cache between rollouts is
    preferred, then the recipe's default, then the one with the fewest off-policy tokens. None is to be pasted than
    which a mode of verl's own is as fast and as fresh.

    Args:
        kv_room: trajectories in flight that fill the KV caches at the mean context.
        trainer_overrides: what any choice needs for the trainer's memory.
    """
    allowed = [
        row
        for row in rows
        if not row.candidate.is_baseline
        and abs(row.length_bias - 1) <= max_length_bias
        and row.mean.off_policy_ratio <= max_off_policy
    ]
    choices = {}
    for name, limits in _limits_of(rows).items():
        if within := [row for row in allowed if limits.allow(row)]:
            best = _best(within)
            choices[name] = Recommendation(
                row=best, reason=_reason(best, limits, kv_room), trainer_overrides=trainer_overrides
            )
    named = [name for name in (BALANCED, FRESH, FASTEST) if name in choices]
    rivals = {name: _as_good(choices[name].row, rows) for name in named}
    pasted = next((name for name in named if rivals[name] is None), None)
    advice = Advice(
        choices=choices,
        name_to_paste=pasted,
        verls_own=rivals[named[0]] if named and pasted is None else None,
        compared=_compared_with_verl(rows, choices.get(FRESH)),
    )
    return replace(advice, warnings=tuple(_warnings(rows, advice)))


def at_equal_share(rows: Sequence[Row]) -> list[Candidate]:
    """This recipe's default with no more off-policy tokens than verl colocate_async, where it has more by itself: speed
    is compared on equal terms."""
    colocate = _row_of(rows, VERL_COLOCATE_ASYNC)
    default = _default_of(rows)
    if colocate is None or default is None or _limits_of(rows)[FRESH].allow(default):
        return []
    cap = round(colocate.mean.off_policy_ratio + CAP_ABOVE, 2)
    system = default.candidate.system
    capped = replace(system.with_overrides({CAP: cap}), name=f"{system.name}, share capped at {cap:g}")
    return [replace(default.candidate, system=capped)] if cap < 1 else []


def _row_of(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row.candidate.is_baseline and row.candidate.system.name == name), None)


def _default_of(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.candidate.is_default), None)


def _verls_modes(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.candidate.is_baseline and row.candidate.system.name.startswith(VERL)]


def _as_good(row: Row, rows: Sequence[Row]) -> Row | None:
    """The fastest mode of verl's own that is as fast as a row, at an equal off-policy share or a lower one."""
    as_good = [
        one
        for one in _verls_modes(rows)
        if one.speed_up >= (1 - NOISE) * row.speed_up and one.mean.off_policy_ratio <= row.mean.off_policy_ratio + EQUAL
    ]
    return max(as_good, key=lambda one: one.speed_up, default=None)


def _compared_with_verl(rows: Sequence[Row], fresh: Recommendation | None) -> str:
    colocate = _row_of(rows, VERL_COLOCATE_ASYNC)
    if colocate is None:
        return ""
    share = f"{VERL_COLOCATE_ASYNC}'s off-policy share of {colocate.mean.off_policy_ratio:.2f}"
    if fresh is None:
        return f"no row of this recipe has {share} or less"
    gain = fresh.row.speed_up / colocate.speed_up - 1
    ours, verls = (row.mean.tokens_per_s_per_gpu for row in (fresh.row, colocate))
    speeds = f"{ours:.0f} tok/s/GPU against {verls:.0f}"
    name = fresh.row.candidate.system.name
    if gain > NOISE:
        return f"at {share}, `{name}` is {gain:.0%} faster: {speeds}"
    return f"at {share}, no row of this recipe is faster; the fastest is `{name}`: {speeds}"


def _best(rows: Sequence[Row]) -> Row:
    fastest = max(row.speed_up for row in rows)
    equals = [row for row in rows if row.speed_up >= (1 - NOISE) * fastest]
    return min(
        equals,
        key=lambda row: (
            row.candidate.keeps_kv,
            not row.candidate.is_default,
            row.mean.off_policy_ratio,
            -row.speed_up,
        ),
    )


def _reason(best: Row, limits: Limits, kv_room: int) -> str:
    size = best.candidate.concurrency
    pool = "the pool sizes itself" if size is None else f"pool {size:,}"
    return f"the fastest {limits}, within {NOISE:.0%}; {pool}: the KV caches hold {kv_room:,} at the mean context"


def _warnings(rows: Sequence[Row], advice: Advice) -> list[str]:
    warnings: list[str] = []
    pasted = advice.to_paste
    if pasted is None:
        return warnings
    if advice.name_to_paste != BALANCED:
        if BALANCED in advice.choices:
            warnings.append(f"at {BALANCED}'s off-policy share a mode of verl's own is as fast")
        else:
            limits = _limits_of(rows)[BALANCED]
            warnings.append(f"no row is {BALANCED} ({limits}); a smaller pool or batch in flight would be")
    default = _default_of(rows)
    if default is not None and pasted.row.speed_up < default.speed_up:
        warnings.append(
            f"slower than this recipe's default, `{default.candidate.system.name}`, by "
            f"{1 - pasted.row.speed_up / default.speed_up:.0%}; what that buys: {_traits(pasted.row)}, in place of "
            f"{_traits(default)}"
        )
    baselines = [row for row in rows if row.candidate.is_baseline]
    if baselines:
        best = max(baselines, key=lambda row: row.speed_up)
        lead = best.speed_up / pasted.row.speed_up - 1
        if lead > NOISE:
            warnings.append(
                f"a baseline wins: `{best.candidate.system.name}` is {lead:.0%} faster than what is recommended, with "
                f"{_traits(best)}, in place of {_traits(pasted.row)}"
            )
        elif pasted.row.speed_up < (1 + NOISE) * rows[0].speed_up:
            warnings.append(f"hardly anything to gain: `{rows[0].candidate.system.name}` is as fast")
    return warnings


def _traits(row: Row) -> str:
    mean = row.mean
    return (
        f"off-policy {mean.off_policy_ratio:.2f}, staleness {mean.staleness_mean:.2f}, waste {mean.waste_ratio:.2f}, "
        f"trained / natural length {row.length_bias:.2f}"
    )
