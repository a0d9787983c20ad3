"""DAPO's dynamic sampling: a group whose trajectories all score the same has no gradient (arXiv:2503.14476, eq. 11)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .outcome import Verdict


@dataclass(slots=True)
class RunningVerdict:
    """What is known of a group while some of its trajectories still run: two metrics that differ make it valid,
    whatever the others will be."""

    judged: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

    @classmethod
    def of(cls, metrics: Iterable[float]) -> "RunningVerdict":
        verdict = cls()
        for metric in metrics:
            verdict.add(metric)
        return verdict

    @property
    def is_certain(self) -> bool:
        """Whether the group is sure to be valid, if none of its trajectories fails. Never reverts."""
        return self.lowest < self.highest

    def add(self, metric: float) -> None:
        """Take in the raw metric of a trajectory that has ended.

        Raises:
            ValueError: if it is not finite.
        """
        if not math.isfinite(metric):
            raise ValueError(f"the metrics of a group must be finite numbers, got {metric}")
        self.judged += 1
        self.lowest, self.highest = min(self.lowest, metric), max(self.highest, metric)


def judge_group(metrics: Sequence[float]) -> Verdict:
    """Valid if the raw metric varies over the n trajectories of the group.

    Raises:
        ValueError: if a metric is not finite, or there is none.
    """
    if not metrics:
        raise ValueError("the metrics of a group must be finite numbers, got none")
    return Verdict.VALID if RunningVerdict.of(metrics).is_certain else Verdict.FILTERED
