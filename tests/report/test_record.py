"""The record of a run: what a resumed run keeps, and what a new one replaces."""

import json
from pathlib import Path

import pytest

from recipe.async_dapo.record import keys
from recipe.async_dapo.record.run_files import RUN_FILE, STEPS_FILE, read_lines
from recipe.async_dapo.record.run_record import RunDescription, StepRecord, all_causes, read_steps
from recipe.async_dapo.training import recorder as recorder_module
from recipe.async_dapo_lab.run_files import LENGTHS_FILE, SAMPLES_FILE

from ..support.recorded_runs import ScriptedRecorder

TRAINED = {keys.STEP_S: 2.0}
VALIDATED = {"val-core/math/acc/mean@1": 0.5}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, which the test sets."""
    now = [1000.0]
    monkeypatch.setattr(recorder_module.time, "time", lambda: now[0])
    return now


def start(folder: Path, clock: list[float], causes: dict[str, int] | None = None) -> ScriptedRecorder:
    description = RunDescription(name="run", system="partial, first_completed", started_s=clock[0])
    return ScriptedRecorder(folder, description, causes or {})


def steps(folder: Path) -> list[StepRecord]:
    return read_steps(folder / STEPS_FILE)


def three_steps(folder: Path, clock: list[float]) -> None:
    """Of 10 s each; then the run is down for a while."""
    first = start(folder, clock)
    for step in (1, 2, 3):
        clock[0] += 10
        first.log(TRAINED, step)
    clock[0] += 5000


def test_a_run_has_a_line_a_step_with_its_time_and_what_groups_failed_of(tmp_path: Path, clock: list[float]) -> None:
    recorder = start(tmp_path / "run", clock, {"reward_error: KeyError('a') at reward.py:3": 2})
    recorder.log(VALIDATED, 0)
    clock[0] += 7
    recorder.log(TRAINED | {"text": "no number"}, 1)
    assert [(line.step, line.time_s, line.data) for line in steps(tmp_path / "run")] == [
        (0, 0.0, VALIDATED),
        (1, 7.0, TRAINED),
    ]
    assert all_causes(steps(tmp_path / "run")) == {"reward_error: KeyError('a') at reward.py:3": 4}
    assert json.loads((tmp_path / "run" / RUN_FILE).read_text())["system"] == "partial, first_completed"


def test_a_resumed_run_goes_on_with_the_record_and_its_clock(tmp_path: Path, clock: list[float]) -> None:
    three_steps(tmp_path, clock)
    resumed = start(tmp_path, clock)  # from the checkpoint of step 2
    resumed.log(VALIDATED, 2)
    clock[0] += 10
    resumed.log(TRAINED, 3)
    assert [(line.step, line.time_s) for line in steps(tmp_path)] == [(1, 10.0), (2, 20.0), (2, 20.0), (3, 30.0)]


def test_a_run_that_is_resumed_without_a_validation_counts_its_first_step_and_drops_what_was_lost_from_every_file(
    tmp_path, clock
):
    three_steps(tmp_path, clock)
    resumed = start(tmp_path, clock)  # from the checkpoint of step 1
    clock[0] += 100 + 10  # it starts up, and trains
    resumed.log({keys.STEP_S: 7.0, keys.VALIDATE_S: 3.0}, 2)
    assert [(line.step, line.time_s) for line in steps(tmp_path)] == [(1, 10.0), (2, 20.0)]
    for name in (SAMPLES_FILE, LENGTHS_FILE):
        assert [line["step"] for line in read_lines(tmp_path / name)] == [1, 2], name


def test_a_new_run_in_the_same_folder_starts_a_new_record(tmp_path: Path, clock: list[float]) -> None:
    for first in (VALIDATED, TRAINED):
        recorder = start(tmp_path, clock)
        recorder.log(first, 0 if first is VALIDATED else 1)
        recorder.log(TRAINED, 2)
    assert [line.step for line in steps(tmp_path)] == [1, 2]


def test_verls_own_file_is_read_as_far_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"a": 1.0}}\n{"step": 2, "da')
    [line] = read_steps(tmp_path / "metrics.jsonl")
    assert (line.step, line.data) == (1, {"a": 1.0})
