"""Files that the lab writes beside the record: they stay small, say what they drop, and outlive a full disk."""

import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.async_dapo.record.call_figures import CallFigures
from recipe.async_dapo_lab.report.calls import OTHERS, call_line, read_calls, summed
from recipe.async_dapo_lab.run_files import BoundedFile, Line, read_lines, write_lines
from recipe.async_dapo_lab.run_record import read_steps

CALLS = st.dictionaries(
    st.sampled_from("abcdef"), st.builds(CallFigures.of, st.floats(0.0, 1e3), is_failed=st.booleans()), min_size=1
)


@contextmanager
def disk_with(free_bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@given(steps=st.lists(CALLS, min_size=1, max_size=30), most_bytes=st.sampled_from([1, 1000, 2000]))
@settings(max_examples=min(30, settings.default.max_examples))
def test_a_record_of_calls_counts_all_of_them_however_often_it_is_shortened(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, CallFigures]], most_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("calls") / "calls.jsonl"
    file = BoundedFile(path, summed=summed, most_bytes=most_bytes)
    expected: dict[str, CallFigures] = {}
    for step, calls in enumerate(steps, start=1):
        line = call_line(step, calls)
        assert line is not None
        file.add(line)
        for name, own in calls.items():
            expected[name] = expected.get(name, CallFigures()) + own
    assert read_calls(path) == expected


@given(resumed_at=st.integers(2, 60))
@settings(max_examples=min(30, settings.default.max_examples))
def test_a_run_that_resumes_keeps_what_is_summed_of_the_steps_before(
    tmp_path_factory: pytest.TempPathFactory, resumed_at: int
) -> None:
    path = tmp_path_factory.mktemp("calls") / "calls.jsonl"
    file = BoundedFile(path, summed=summed, most_bytes=2000)
    for step in range(1, 61):
        line = call_line(step, {"add": CallFigures.of(0.5, is_failed=False)})
        assert line is not None
        file.add(line)
    ends = [0, *(line["step"] for line in read_lines(path))]
    assert len(ends) < 40, "nothing was summed"
    file.keep_before(resumed_at)
    kept = read_calls(path)["add"].calls if resumed_at > ends[1] else 0
    assert kept == max(end for end in ends if end < resumed_at)


@pytest.mark.slow
def test_however_many_names_calls_have_their_sum_stays_small(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "calls.jsonl", summed=summed, most_bytes=60_000)
    for step in range(1, 301):
        line = call_line(step, {f"tool-{step}-{index}": CallFigures.of(0.5, is_failed=False) for index in range(50)})
        assert line is not None
        file.add(line)
        assert (tmp_path / "calls.jsonl").stat().st_size <= 60_000
    found = read_calls(tmp_path / "calls.jsonl")
    assert sum(own.calls for own in found.values()) == 300 * 50 and len(found) == 41 and OTHERS in found


def test_lines_that_are_dropped_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = BoundedFile(tmp_path / "lengths.jsonl", most_bytes=1000)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 501):
            file.add({"step": step})
    [told] = [record.message for record in caplog.records]
    assert "lengths.jsonl is above 0.001 MB: lines of steps before" in told
    steps = [line["step"] for line in read_lines(tmp_path / "lengths.jsonl")]
    assert steps == list(range(steps[0], 501)) and len(steps) > 10


def test_on_a_full_disk_a_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    lines = [{"step": step} for step in range(1, 2001)]
    write_lines(path, lines)
    with disk_with(path.stat().st_size // 2), pytest.raises(OSError, match="too large"):
        BoundedFile(path).keep_before(1900)
    assert read_lines(path) == lines


@pytest.mark.parametrize("summing", [summed, None])
def test_a_process_that_ends_while_a_file_is_shortened_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summing: Callable[[Sequence[Line]], Line] | None
) -> None:
    def ends(*_: object) -> None:
        raise SystemExit

    path = tmp_path / "calls.jsonl"
    lines = [{"step": step, "calls": {}} for step in range(1, 40)]
    write_lines(path, lines[:-1])
    monkeypatch.setattr("os.fsync", ends)
    with pytest.raises(SystemExit):
        BoundedFile(path, summed=summing, most_bytes=100).add(lines[-1])
    assert read_lines(path) == lines


def test_verls_own_file_is_read_as_far_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"a": 1.0}}\n{"step": 2, "da')
    [line] = read_steps(tmp_path / "metrics.jsonl")
    assert (line.step, line.data) == (1, {"a": 1.0})
