"""Tokens by policy version: the bound on staleness, how stale a batch is, and which forward passes correct for it.

What keeps a trained token from being too old: a group of which no token could be trained on any more is retired before
a round, and one that would be too stale in the next step is finished first (`PromptPool`). A group starts only while it
can be trained in time (`Round`; `Deadlines`, where engines have GPUs of their own), and only while so few trajectories
are unfinished that the longest ends in time (`RoundSize`). Tokens that are too old all the same are masked out of the
loss (`store.withhold`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

# Of the tokens trained on [versions]: what the planner calls balanced and a run's hints call healthy. One batch in
# flight, as in verl's colocate_async, stays below it.
HEALTHY_MEAN_STALENESS = 1.0

Segments = Sequence[tuple[int, int]]  # (policy version, tokens) of one trajectory, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessLimit:
    """Bounded staleness: what must be finished first, and what can no longer be trained on. Step s trains the policy
    version s - 1; a token of version v has staleness s - 1 - v [versions].

    Args:
        max_staleness: of any trained token [versions, >= 0]; None = no limit.
    """

    max_staleness: int | None

    def rounds_in_flight(self, mean_len_tok: float, longest_tok: int) -> float | None:
        """How many rounds a mean trajectory may take, so that the longest one that starts now can still be trained on;
        at least the round it starts in. None = no limit.

        Args:
            longest_tok: the response limit [tokens].
        """
        if self.max_staleness is None:
            return None
        return max(1.0, self.max_staleness * mean_len_tok / longest_tok)

    def oldest_trainable(self, step: int) -> int:
        """The oldest policy version whose tokens may be trained on in this step."""
        return 0 if self.max_staleness is None else step - 1 - self.max_staleness

    def must_finish(self, version: int | None, step: int) -> bool:
        """Whether tokens of this version can be trained on in this step, but no longer in the next."""
        return version is not None and version < self.oldest_trainable(step + 1)

    def is_too_stale(self, version: int | None, step: int) -> bool:
        return version is not None and version < self.oldest_trainable(step)


class VersionTag(TypedDict):
    """Where a trajectory's tokens come from."""

    segments: list[tuple[int, int]]  # (policy version, tokens), in order
    min_global_steps: int  # oldest of these versions; verl's name
    age: int  # rounds it was carried over


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionShares:
    """From which policy versions a batch comes, by staleness [versions]."""

    tokens: Counter = field(default_factory=Counter)
    ages: Counter = field(default_factory=Counter)

    @classmethod
    def of(cls, tags: Iterable[VersionTag], *, step: int) -> "VersionShares":
        """Count a batch.

        Args:
            tags: one per trajectory.
            step: the step that trains the batch.
        """
        shares = cls()
        for tag in tags:
            for version, num_tokens in tag["segments"]:
                shares.tokens[step - 1 - version] += num_tokens
            shares.ages[tag["age"]] += 1
        return shares

    @property
    def partial_share(self) -> float:
        """Share of tokens from older versions than the one being trained [0-1]."""
        older = sum(count for staleness, count in self.tokens.items() if staleness > 0)
        return older / self.tokens.total() if older else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePlan:
    """Which trajectories of a batch get a mixture, and the forward passes that the balance heuristic takes for it.

    Groups whose members switch versions at different tokens need a mixture. For each such group and each version in it
    there is one forward pass over all members.

    The schedule of a trajectory says which policy version sampled each of its tokens. Beyond the trajectory's end it
    goes on with its last version.
    """

    groups: list[list[int]]  # members of each mixed group
    passes: dict[int, list[int]]  # policy version -> trajectories to be scored by it, ascending
    mixed_tok: int  # of these groups
    unknown_tok: int  # of groups that mix versions, some of which are not at hand: left as they are

    def passes_before(self, newest: int) -> dict[int, list[int]]:
        """Those of older versions; the newest one's log-probs are computed in any case."""
        return {version: members for version, members in self.passes.items() if version != newest}


def plan_mixtures(
    segments: Sequence[Segments], groups: Iterable[Sequence[int]], at_hand: Collection[int]
) -> MixturePlan:
    """Groups whose members have different schedules; the others' mixture is what sampled them.

    Args:
        segments: of each trajectory's sampled tokens; empty for one that is left out.
        groups: their members, as places in `segments`.
        at_hand: versions whose log-probs can be computed.
    """
    mixed: list[list[int]] = []
    passes: dict[int, set[int]] = {}
    mixed_tok = unknown_tok = 0
    for rows in groups:
        members = [row for row in rows if segments[row]]
        if len({_switches(segments[row]) for row in members}) < 2:
            continue
        lens_tok = [sum(num_tok for _, num_tok in segments[row]) for row in members]
        present = {version for row in members for version, _ in segments[row]}
        if not present <= set(at_hand):
            unknown_tok += sum(lens_tok)
            continue
        mixed.append(members)
        mixed_tok += sum(lens_tok)
        for version in present:
            passes.setdefault(version, set()).update(members)
    return MixturePlan(
        groups=mixed,
        passes={version: sorted(rows) for version, rows in sorted(passes.items())},
        mixed_tok=mixed_tok,
        unknown_tok=unknown_tok,
    )


def _switches(segments: Segments) -> tuple[tuple[int, int], ...]:
    """(token, version) wherever the version changes: the same for equal schedules, however long they are known."""
    switches: list[tuple[int, int]] = []
    start = 0
    for version, num_tok in segments:
        if not switches or switches[-1][1] != version:
            switches.append((start, version))
        start += num_tok
    return tuple(switches)
