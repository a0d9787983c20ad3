"""Shares of a batch by source: how many valid groups of each a step trains, and how many prompts of each are held.

    named shares     round(B x share) groups of each source in every step, by largest remainder
    `balanced`       the shares that sources have in the data; what rounding leaves over is carried to the next step, so
                     that they hold over steps where B is small

Each source is a part of the batch with over-sampling of its own: its valid share decides how many of its prompts are
held and begun, and the round waits for each (`core/mix.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ...core.mix import Mix, Quota
from ...core.outcome import JUDGED, CarriedGroup, GroupOutcome, Verdict
from ...core.over_sampling import AvailableGroups, OverSampling, OverSamplingState
from ...core.trajectory import PromptGroup

NOTHING = AvailableGroups(certain=0, open=0)


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
    """Batches with so many valid groups of each source. The unit in which prompts are drawn is that of the whole batch
    for each: in a few prompts, a source that is rarely valid may have no valid group by chance.

    Args:
        over_sampling: over all groups, and what that of each source is made like.
        carries: what rounding leaves over is carried to the next step.
        begins_ahead: sources that have enough go on to begin groups while others have too few.
    """

    def __init__(self, over_sampling: OverSampling, *, carries: bool, begins_ahead: bool) -> None:
        super().__init__(over_sampling)
        self._carries, self._begins_ahead = carries, begins_ahead
        self._shares: dict[str, Fraction] = {}
        self._owed: dict[str, Fraction] = {}
        self._own: dict[str, OverSampling] = {}
        self._most: dict[str, int] | None = None  # that can be trained before tokens sampled now are too stale
        self.targets: dict[str, int] = {}
        self.without_share: dict[str, int] = {}  # groups that are held of sources which have none, by source

    def begin(self, shares: Mapping[str, Fraction]) -> None:
        """The shares of the batch are known; their sum is 1."""
        self._shares, self._owed = dict(shares), dict.fromkeys(shares, Fraction(0))
        self._plan()
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

    def _plan(self) -> None:
        """Targets of the next step, and how much it and the later steps train that its tokens are not too stale for."""
        self.targets = self._targets(self._owed)
        for source, own in self._own.items():
            own.target_valid_groups = self.targets[source]
        if self.over_sampling.versions is None:
            return
        owed, targets, most = self._owed, self.targets, Counter(self.targets)
        for _ in range(self.over_sampling.versions - 1):
            owed = self._left_over(owed, targets)
            targets = self._targets(owed)
            most.update(targets)
        self._most = dict(most)

    def _targets(self, owed: Mapping[str, Fraction]) -> dict[str, int]:
        """Of a step, given what rounding has left over before it."""
        count = self.over_sampling.target_valid_groups
        wanted = {source: count * share + owed[source] for source, share in self._shares.items()}
        least = {source: max(Fraction(0), groups) for source, groups in wanted.items()}
        return apportion(count, least)

    def _left_over(self, owed: dict[str, Fraction], targets: Mapping[str, int]) -> dict[str, Fraction]:
        """What rounding has left over after a step."""
        if not self._carries:
            return owed
        batch = self.over_sampling.target_valid_groups
        return {source: groups + batch * self._shares[source] - targets[source] for source, groups in owed.items()}

    def part_of(self, group: PromptGroup) -> str:
        return group.source

    def quotas(self, carried: Sequence[CarriedGroup]) -> dict[str, Quota]:
        counts = Counter(one.group.source for one in carried)
        return {
            source: Quota.of(
                own,
                carried=counts[source],
                most_trainable=None if self._most is None else self._most[source],
                begins_ahead=self._begins_ahead,
            )
            for source, own in self._own.items()
        }

    def missing(self, available: Mapping[str, AvailableGroups]) -> dict[str, int]:
        self.without_share = {
            source: groups.certain + groups.open for source, groups in available.items() if source not in self._own
        }
        return self._missing(available)

    def _missing(self, available: Mapping[str, AvailableGroups]) -> dict[str, int]:
        counts = {source: own.missing(available.get(source, NOTHING)) for source, own in self._own.items()}
        return {source: count for source, count in counts.items() if count}

    @property
    def groups_to_hold(self) -> int:
        return sum(self._missing({}).values())

    def to_draw(self, available: Mapping[str, AvailableGroups]) -> dict[str, int]:
        return {
            source: own.groups_to_draw(available[source])
            for source, own in self._own.items()
            if available[source].expected_valid(own.expected_share) < own.target_valid_groups
        }

    def take(self, carried: Sequence[CarriedGroup]) -> list[str]:
        left, taken = Counter(self.targets), []
        for one in carried:
            if left[one.group.source] > 0:
                left[one.group.source] -= 1
                taken.append(one.uid)
        self._go_on()
        return taken

    def _go_on(self) -> None:
        """The next step's batch."""
        self._owed = self._left_over(self._owed, self.targets)
        self._plan()

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
        if self._carries and state.owed.keys() == self._shares.keys():
            self._owed = {source: Fraction(owed) for source, owed in state.owed.items()}
        self._plan()
        for source, kept in state.over_sampling.items():
            if source in self._own:
                self._own[source].restore(kept)
