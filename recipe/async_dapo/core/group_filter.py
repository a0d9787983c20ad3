"""DAPO's dynamic sampling: a group whose trajectories all score the same has no gradient (arXiv:2503.14476, eq. 11)."""

import math
from collections.abc import Sequence

from .trajectory import Verdict


def judge_group(metrics: Sequence[float]) -> Verdict:
    """Valid if the raw metric varies over the n trajectories of the group.

    Raises:
        ValueError: if a metric is not finite, or there is none.
    """
    if not metrics or not all(math.isfinite(metric) for metric in metrics):
        raise ValueError(f"metrics of a group must be finite numbers, got {list(metrics)}")
    return Verdict.VALID if min(metrics) < max(metrics) else Verdict.FILTERED
