"""Calls in a few numbers, however many they are."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.record.call_figures import CallFigures

SECONDS = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=60)


@given(seconds=SECONDS, failed=st.data())
def test_figures_that_are_added_are_those_of_all_calls(seconds: list[float], failed: st.DataObject) -> None:
    are_failed = [failed.draw(st.booleans()) for _ in seconds]
    calls = [CallFigures.of(one, is_failed=has) for one, has in zip(seconds, are_failed, strict=True)]
    split = failed.draw(st.integers(0, len(calls)))
    found = sum(calls[:split], CallFigures()) + sum(calls[split:], CallFigures())
    assert (found.calls, found.failed, found.longest_s) == (len(seconds), sum(are_failed), max(seconds))
    assert found.median_s == pytest.approx(statistics.median_low(seconds), rel=0.051)
    assert found.median_s <= found.longest_s


def test_a_call_of_unknown_duration_is_counted_and_shortens_no_median() -> None:
    found = CallFigures.of(0.0, is_failed=False) + CallFigures.of(3.0, is_failed=False)
    assert found.calls == 2 and found.median_s == pytest.approx(3.0, rel=0.051)
