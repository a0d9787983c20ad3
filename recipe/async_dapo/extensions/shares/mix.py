"""Shares of a batch by source: how many valid groups of each a step trains, and how many prompts of each are held.

    named shares     round(B x share) groups of each source in every step, by largest remainder
    `balanced`       the shares that sources have in the data; what rounding leaves over is carried to the next step, so
                     that they hold over steps where B is small

Each source is a part of the batch with over-sampling of its own: its valid share decides how many of its prompts are
held and begun, and the round waits for each (`core/round_parts.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from ...core.mix import Carried, Mix
from ...core.outcome import JUDGED, GroupOutcome, Verdict
from ...core.over_sampling import AtHand, OverSampling, OverSamplingState
from ...core.round_parts import Quota
from ...core.trajectory import PromptGroup

NOTHING = AtHand(certain=0, open=0)


def apportion(count: int, weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Whole numbers that sum to `count`, as near to these weights as they can be: by largest remainder. Of equal ones
    the first gets more.

    Args:
        weights: each >= 0, and their sum > 0.
    """
    total = sum(weights.values())
    exact = {name: count * weight / total for name, weight in weights.items()}
    parts = {name: int(value) for name, value in exact.items()}
    left = count - sum(parts.values())
    for name in sorted(exact, key=lambda name: parts[name] - exact[name])[:left]:
        parts[name] += 1
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesState:
    """What a checkpoint keeps of shares, by source."""

    owed: dict[str, str]  # groups that were left over by rounding, as fractions
    over_sampling: dict[str, OverSamplingState]


class SourceMix(Mix):
    """Batches with so many valid groups of each source.

    Args:
        over_sampling: over all groups, and what that of each source is made like.
        carries: what rounding leaves over is carried to the next step.
        versions: that may train on a token, the newest included; None = no limit.
        begins_ahead: sources that have enough go on to begin groups while others have too few.
    """

    def __init__(self, over_sampling: OverSampling, *, carries: bool, versions: int | None, begins_ahead: bool) -> None:
        super().__init__(over_sampling)
        self._carries, self._versions, self._begins_ahead = carries, versions, begins_ahead
        self._shares: dict[str, Fraction] = {}
        self._owed: dict[str, Fraction] = {}
        self._own: dict[str, OverSampling] = {}
        self.targets: dict[str, int] = {}

    def begin(self, shares: Mapping[str, Fraction]) -> None:
        """The shares of the batch are known; their sum is 1."""
        self._shares, self._owed = dict(shares), dict.fromkeys(shares, Fraction(0))
        self.targets = self._next_targets()
        size = self.over_sampling.batch_size
        held = None if size is None else apportion(size, self._shares)
        self._own = {
            source: replace(
                self.over_sampling,
                target_valid_groups=target,
                batch_size=None if held is None else max(1, held[source]),
            )
            for source, target in self.targets.items()
        }

    def _next_targets(self) -> dict[str, int]:
        count = self.over_sampling.target_valid_groups
        if not self._carries:
            return apportion(count, self._shares)
        wanted = {source: count * share + self._owed[source] for source, share in self._shares.items()}
        least = {source: max(Fraction(0), groups) for source, groups in wanted.items()}
        return apportion(count, least)

    def part_of(self, group: PromptGroup) -> str:
        return group.source

    def quotas(self, carried: Sequence[Carried]) -> dict[str, Quota]:
        counts = Counter(one.group.source for one in carried)
        return {source: self._quota(source, counts[source]) for source in self.targets}

    def _quota(self, source: str, carried: int) -> Quota:
        own, target, batch = self._own[source], self.targets[source], self.over_sampling.target_valid_groups
        most = None if self._versions is None else max(target, ceil(self._versions * batch * self._shares[source]))
        return Quota(
            target_valid_groups=target,
            carried_valid_groups=carried,
            most_trainable=most,
            valid_share=own.valid_share,
            counted_share=own.counted_share,
            begins_ahead=self._begins_ahead,
        )

    def missing(self, at_hand: Mapping[str, AtHand]) -> dict[str, int]:
        counts = {source: own.missing(at_hand.get(source, NOTHING)) for source, own in self._own.items()}
        return {source: count for source, count in counts.items() if count}

    def to_draw(self, at_hand: Mapping[str, AtHand]) -> dict[str, int]:
        return {
            source: own.groups_to_draw(at_hand[source])
            for source, own in self._own.items()
            if at_hand[source].expected_valid(own.counted_share) < own.target_valid_groups
        }

    def batch_unit(self, part: str) -> int:
        return max(1, self._own[part].batch_unit)

    def take(self, carried: Sequence[Carried]) -> list[str]:
        left, taken = Counter(self.targets), []
        for one in carried:
            if left[one.group.source] > 0:
                left[one.group.source] -= 1
                taken.append(one.uid)
        self._go_on()
        return taken

    def _go_on(self) -> None:
        """The next step's batch."""
        batch = self.over_sampling.target_valid_groups
        if self._carries:
            self._owed = {
                source: owed + batch * self._shares[source] - self.targets[source]
                for source, owed in self._owed.items()
            }
        self.targets = self._next_targets()
        for source, own in self._own.items():
            own.target_valid_groups = self.targets[source]

    def observe(self, partial_share: float, outcomes: Iterable[GroupOutcome]) -> None:
        outcomes = list(outcomes)
        super().observe(partial_share, outcomes)
        judged = Counter(outcome.source for outcome in outcomes if outcome.verdict in JUDGED)
        valid = Counter(outcome.source for outcome in outcomes if outcome.verdict is Verdict.VALID)
        for source, own in self._own.items():
            own.observe(partial_share, valid=valid[source], judged=judged[source])

    def state(self) -> SharesState:
        return SharesState(
            owed={source: str(owed) for source, owed in self._owed.items()},
            over_sampling={source: own.state() for source, own in self._own.items()},
        )

    def restore(self, state: SharesState) -> None:
        """Go on from a checkpoint, with the shares of this run."""
        if state.owed.keys() == self._shares.keys():
            self._owed = {source: Fraction(owed) for source, owed in state.owed.items()}
        for source, kept in state.over_sampling.items():
            if source in self._own:
                self._own[source].restore(kept)
        self.targets = self._next_targets()
        for source, own in self._own.items():
            own.target_valid_groups = self.targets[source]
