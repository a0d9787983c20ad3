"""How many trajectories wait for calls over time, in a bounded number of samples."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from recipe.async_dapo.extensions.agents.counts import CountSamples


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
