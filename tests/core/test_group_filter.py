"""DAPO's filter: a group is valid if and only if its metric varies."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import Verdict, judge_group

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite | st.booleans(), min_size=1))
def test_valid_exactly_when_two_metrics_differ(metrics: list[float]) -> None:
    assert (judge_group(metrics) is Verdict.VALID) == (len(set(metrics)) > 1)


@given(st.lists(finite, max_size=4), st.sampled_from([math.nan, math.inf, -math.inf]), st.lists(finite, max_size=4))
def test_given_a_metric_that_is_no_finite_number_then_it_is_refused(
    before: list[float], bad: float, after: list[float]
):
    with pytest.raises(ValueError, match="finite"):
        judge_group([*before, bad, *after])


def test_given_no_metrics_then_it_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        judge_group([])
