"""Calls in a few numbers, however many they are."""

import itertools
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recipe.async_dapo.core.call_figures import CallFigures, CountSamples

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


@example(counts=[0, 1, 0, 1, 0], limit=4)  # of which every second one is 0
@given(counts=st.lists(st.integers(0, 3), max_size=400), limit=st.integers(4, 32))
def test_samples_of_a_count_are_bounded_in_order_and_end_with_what_it_is_now(counts: list[int], limit: int) -> None:
    samples = CountSamples(limit)
    for second, count in enumerate(counts):
        samples.add(float(second), count)
    taken = samples.take(1000.0)
    if not any(counts):
        assert taken == ()
        return
    times = [time_s for time_s, _ in taken]
    assert len(taken) <= limit + 2 and times == sorted(times)
    changes = [second for second, count in enumerate(counts) if second == 0 or count != counts[second - 1]]
    shown = [changes.index(int(time_s)) for time_s in times[:-1]]
    skipped = [later - earlier for earlier, later in itertools.pairwise(shown)]
    assert shown[0] == 0 and max(skipped, default=0) <= max(1, 2 * len(changes) / limit), "all of the round is seen"
    assert taken[-1] == (1000.0, counts[-1])
    assert taken[-2][1] == counts[-1] and all(counts[int(time_s)] == count for time_s, count in taken[:-1])
    assert (len(samples.take(2000.0)) > 0) is (counts[-1] > 0), "a round that goes on begins with what it had"
