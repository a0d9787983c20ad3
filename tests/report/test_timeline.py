"""Engines over time: bounded while it is recorded, and drawn in the report."""

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo_lab.report.samples import LoadSample, LoadSamples
from recipe.async_dapo_lab.report.timeline import MOST_SAMPLES, StepTimeline, line_of, read_timeline, together
from recipe.async_dapo_lab.run_files import BoundedFile


@given(steps=st.integers(0, 3000), limit=st.integers(2, 64))
def test_however_long_a_round_its_samples_are_bounded_and_spread_over_all_of_it(steps: int, limit: int) -> None:
    samples = LoadSamples(limit)
    for second in range(1, steps + 1):
        if samples.is_due():
            samples.add(float(second), 1, 0, 0.5)
    unpacked = samples.packed(shift_s=1000.0).unpack()
    assert all(sample == LoadSample(sample.time_s, 1, 0, 0.5) for sample in unpacked)
    times = [sample.time_s for sample in unpacked]
    gaps = {after - before for before, after in itertools.pairwise(times)}
    assert len(times) < limit and len(gaps) <= 1
    if steps >= limit:
        assert len(times) >= limit // 2 - 1 and times[-1] > 1000 + steps - 2 * max(gaps, default=steps)
    else:
        assert times == [1000.0 + second for second in range(1, steps + 1)][: len(times)]


COUNTS = st.lists(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 9)), max_size=200).map(sorted), max_size=3
)  # each (time, from then on)


@given(counts=COUNTS)
def test_counts_of_several_workers_are_one_over_time_and_bounded(counts: list[list[tuple[int, int]]]) -> None:
    def at(one: list[tuple[int, int]], time_s: float) -> int:
        return next((count for began_s, count in reversed(one) if began_s <= time_s), 0)

    found = together(counts)
    times = [time_s for time_s, _ in found]
    assert times == sorted(times) and len(found) <= MOST_SAMPLES
    for time_s in set(times):
        assert at(found, time_s) == sum(at(one, time_s) for one in counts)
    assert (not found) is (not any(counts))
    if found:
        assert times[-1] == max(began_s for one in counts for began_s, _ in one), "how it is at the end"


def test_the_record_of_a_long_run_keeps_its_newest_steps(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "timeline.jsonl", most_bytes=4000)
    for step in range(1, 501):
        samples = [LoadSample(1000.0 + step, step, 0, 0.25)] * 10
        file.add(line_of(step, StepTimeline(engines={"server-0": samples}), origin_s=1000.0))
        assert (tmp_path / "timeline.jsonl").stat().st_size <= 4000
    kept = [step.engines["server-0"][0] for step in read_timeline(tmp_path / "timeline.jsonl")]
    assert len(kept) > 5 and [sample.running for sample in kept] == list(range(501 - len(kept), 501))
    assert kept[-1] == LoadSample(500.0, 500, 0, 0.25)
