"""Which forward passes the mixtures of a batch take, under which policy versions."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

Segments = Sequence[tuple[int, int]]  # (policy version, tokens) of one trajectory, in order


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
    segments: Sequence[Segments], groups: Iterable[Sequence[int]], available: Collection[int]
) -> MixturePlan:
    """Groups whose members have different schedules; the others' mixture is what sampled them.

    Args:
        segments: of each trajectory's sampled tokens; empty for one that is left out.
        groups: their members, as places in `segments`.
        available: versions whose log-probs can be computed.
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
        if not present <= set(available):
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
