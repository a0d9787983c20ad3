"""Two-stage groups: a few samples first, the others when these differ (screening as in SPEED-RL, arXiv:2506.09016).

    fresh group -> k samples -+-- two of them differ: certain -> the other n - k at once, ahead of fresh groups
                              +-- all end alike ------------------> screened out: n - k answers are not generated
    a share `keep_share` of all groups, drawn by uid -> n samples at once, whatever the first k would have said

All is decided from what a group has generated so far: a half-screened group may be kept, restarted, saved and resumed
like any other. Only a uniform group is given up, so a trained group is what it would have been without screening; which
prompts are trained how often is not: see docs/selection.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from .outcome import GroupOutcome, Verdict, is_certain
from .trajectory import PromptGroup, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """How groups are screened.

    Args:
        samples: k, trajectories that a group starts with [count, 2 <= k < n]; None = all: no screening.
        keep_share: of the groups, those that are not screened [0-1]: so no prompt is shut out for good, and what is
            lost can be measured.
    """

    samples: int | None
    keep_share: float = 0.05

    def cost(self, n: int) -> float:
        """What a screened-out group generates, of a whole group of n [0-1]."""
        return 1.0 if self.samples is None else self.samples / n

    def keeps(self, uid: str) -> bool:
        """Whether a group is one of those that are not screened: a draw by hash, the same whenever it is asked."""
        drawn = int.from_bytes(blake2b(uid.encode(), digest_size=8, person=b"screening").digest())
        return drawn < self.keep_share * 2**64

    def held_back(self, group: PromptGroup) -> list[Trajectory]:
        """Trajectories that start only when the group has become certain."""
        if self.samples is None or group.is_certain or self.keeps(group.uid):
            return []
        later = group.trajectories[self.samples :]
        # Where one has begun, the group was started without screening, or with more samples.
        return [] if any(trajectory.has_started for trajectory in later) else later

    def to_run(self, group: PromptGroup) -> list[Trajectory]:
        """Unfinished trajectories that may run now."""
        held_back = len(self.held_back(group))
        begun = group.trajectories[: len(group.trajectories) - held_back]
        return [trajectory for trajectory in begun if not trajectory.is_finished]

    def is_screened_out(self, group: PromptGroup) -> bool:
        """Whether all samples have ended, and none differs from the others."""
        return bool(self.held_back(group)) and not self.to_run(group)

    def is_kept(self, uid: str, metrics: Sequence[float]) -> bool:
        """Whether a whole group would have been screened out, had it not been drawn to be kept.

        Args:
            metrics: of its trajectories, in their order.
        """
        if self.samples is None or not self.keeps(uid):
            return False
        return not is_certain(metrics[: self.samples])


NO_SCREENING = Screening(samples=None, keep_share=0.0)  # of validation


@dataclass(slots=True, kw_only=True)
class Screened:
    """What screening came to in a round. Counts are groups unless the name says otherwise."""

    groups: int = 0
    generated_tok: int = 0
    saved_tok: float = 0.0  # estimated: each group's other trajectories, at the mean length of its samples
    kept: int = 0  # whole groups that would have been screened out
    kept_valid: int = 0

    @classmethod
    def of(cls, outcomes: Sequence[GroupOutcome], n: int) -> "Screened":
        """Count a round.

        Args:
            n: trajectories of a whole group [count].
        """
        total = cls()
        for outcome in outcomes:
            if outcome.verdict is Verdict.SCREENED:
                total.groups += 1
                total.generated_tok += sum(outcome.response_lens_tok)
                samples = len(outcome.response_lens_tok)
                total.saved_tok += sum(outcome.response_lens_tok) / samples * (n - samples)
            elif outcome.is_kept:
                total.kept += 1
                total.kept_valid += outcome.verdict is Verdict.VALID
        return total
