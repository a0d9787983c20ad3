"""The record of a run: what a resumed run keeps, and what a new one replaces."""

from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo.extensions.record import recorder as recorder_module
from recipe.async_dapo.record import keys
from recipe.async_dapo_lab.report.record import LabRecord
from recipe.async_dapo_lab.report.timeline import StepTimeline
from recipe.async_dapo_lab.run_files import LENGTHS_FILE, SAMPLES_FILE, STEPS_FILE, read_lines
from recipe.async_dapo_lab.run_record import StepRecord, all_causes, read_description, read_steps

from ....support.simulated_options import options

TRAINED = {keys.STEP_S: 2.0}
VALIDATED = {"val-core/math/acc/mean@1": 0.5}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, which the test sets."""
    now = [1000.0]
    monkeypatch.setattr(recorder_module.time, "time", lambda: now[0])
    return now


class Recorder(recorder_module.Recorder):
    """With files of its own, as the lab's has."""

    causes: dict[str, int]

    def take_causes(self) -> dict[str, int]:
        return self.causes

    def begin_record(self, folder: Path, *, started_s: float, first_step: int) -> None:
        self.record = LabRecord(folder, started_s=started_s, first_step=first_step)

    def log(self, data: Any, step: int) -> None:
        super().log(data, step)
        self.record.add(step, StepTimeline(spans=[], engines={}), lengths=[{"step": step}])


def start(folder: Path, clock: list[float], causes: dict[str, int] | None = None) -> Recorder:
    own = Recorder(options())
    own.write_to(folder, {"name": "run", "system": "partial, first_completed", "started_s": clock[0]})
    own.causes = causes or {}
    return own


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
    description = read_description(tmp_path / "run")
    assert description is not None and description.system == "partial, first_completed"


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
