"""GPU hours to an accuracy, on curves made by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks.hours.summary import TARGETS, _ratio, steps_over

AT = np.arange(0, 210, 10)
SEEDS = 5


def curves(slowness: float, *, ceiling: float = 1.0, seeds: int = SEEDS) -> pd.DataFrame:
    """Accuracy rises on a straight line to 0.9, the later the slower; seeds differ in height alone."""
    heights = np.linspace(-0.01, 0.01, seeds)
    rising = 0.2 + 0.7 * np.minimum(1.0, AT / (150 * slowness))
    return pd.DataFrame({seed: np.minimum(rising + height, ceiling) for seed, height in enumerate(heights)}, index=AT)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("slowness", [0.8, 1.0, 1.25])
def test_a_curve_that_rises_as_many_times_slower_takes_as_many_times_the_steps(target, slowness):
    equal = np.full((1, SEEDS), 1 / SEEDS)
    [ratio] = steps_over(curves(slowness), curves(1.0), equal, target)
    assert ratio == pytest.approx(slowness, rel=0.03)


def test_seeds_are_drawn_in_pairs_so_that_what_both_share_widens_no_interval():
    found = _ratio(curves(1.25), curves(1.0), "its end")
    assert found["seeds"] == SEEDS and found["never"] == 0
    assert found["low"] <= found["mean"] <= found["high"]
    assert found["high"] - found["low"] < 0.02


def test_an_accuracy_that_is_not_reached_costs_infinitely_many_hours():
    found = _ratio(curves(1.0, ceiling=0.87), curves(1.0), "its end")
    assert math.isinf(found["mean"]) and math.isinf(found["high"]) and found["never"] == 1
    assert _ratio(curves(1.0, ceiling=0.87), curves(1.0), "0.9 of its gain")["mean"] == pytest.approx(1.0, rel=0.02)
