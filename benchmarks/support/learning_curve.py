"""Learning curves as they stand in a cell of a runs file: `cost:accuracy` at every validation, with a space between.

A cost is what a run has taken so far: training seconds, or generated tokens.
"""

from collections.abc import Iterable
from itertools import pairwise

import pandas as pd


def written(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{cost:.1f}:{accuracy:.4f}" for cost, accuracy in points)


def read(text: str) -> list[tuple[float, float]]:
    """(cost so far, accuracy) at every validation."""
    points = (point.split(":") for point in text.split())
    return [(float(cost), float(accuracy)) for cost, accuracy in points]


def midway(curves: pd.Series) -> float:
    """Halfway between the mean accuracy of the runs' first validations and that of their last."""
    ends = [read(text)[place][1] for text in curves for place in (0, -1)]
    return sum(ends) / len(ends)


def cost_to(target: float, curve: str) -> float | None:
    """Until the accuracy is reached, on straight lines between validations; None if it is not."""
    for (before_cost, before), (after_cost, after) in pairwise(read(curve)):
        if before >= target:
            return before_cost
        if after >= target:
            return before_cost + (after_cost - before_cost) * (target - before) / (after - before)
    return None
