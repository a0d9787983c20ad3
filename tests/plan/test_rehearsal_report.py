"""What a rehearsal reports: spans and idle places from its records, and when it must not be believed."""

import json
from pathlib import Path

import pytest

from recipe.async_dapo_lab.rehearsal.options import CompressedClock
from recipe.async_dapo_lab.rehearsal.report import judge
from recipe.async_dapo_lab.rehearsal.timeline import Timeline
from recipe.async_dapo_lab.rehearsal.training import TrainingSchedule

PHASES = ("rollout", "log_prob", "end")


def write_records(folder: Path) -> tuple[Path, Path]:
    """Two steps of 100 s on two engines; a rollout of 60 s, in the second half of which one engine is empty."""
    engines, phases = folder / "engines.jsonl", folder / "phases.jsonl"
    samples = []
    for time_s in range(0, 200, 5):
        in_step = time_s % 100
        running = [8 if in_step < 60 else 0, 8 if in_step < 30 else 0]
        samples.append({"time_s": time_s, "running": running, "waiting": [0, 0], "late_s": [in_step / 100]})
    engines.write_text("".join(json.dumps(sample) + "\n" for sample in samples) + '{"time_s": 2')  # cut off
    lines = []
    for step in (1, 2):
        for phase, offset_s in zip(PHASES, (0, 61, 100), strict=True):
            lines.append({"time_s": 100 * (step - 1) + offset_s, "step": step, "phase": phase})
        lines[-1]["late_s"] = 2.0 * step
    phases.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return engines, phases


def test_given_records_then_steps_rollouts_idle_places_and_lateness_are_read_from_them(tmp_path) -> None:
    timeline = Timeline.load(*write_records(tmp_path))
    second = timeline.steps[2]
    assert (second.step_s, second.rollout_s) == (100, 61)
    assert timeline.idle_between(100, 159) == pytest.approx(0.25)
    assert timeline.lateness_between(0, 10) == [0.0, 0.05, 0.1]
    assert timeline.trainer_late_s(2, 2) == 4.0 and timeline.trainer_late_s(1, 2) == 6.0


def write_phases(folder: Path, *steps: dict[str, float]) -> Timeline:
    """Records of steps that were late by nothing, from 1 on, and of engines that held nothing."""
    engines, phases = folder / "engines.jsonl", folder / "phases.jsonl"
    engines.write_text('{"time_s": 0, "running": [0], "waiting": [0], "late_s": []}\n')
    lines = [
        {"step": number, "phase": phase, "time_s": time_s, "late_s": 0.0}
        for number, step in enumerate(steps, start=1)
        for phase, time_s in step.items()
    ]
    phases.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Timeline.load(engines, phases)


def test_given_a_validation_after_a_step_then_the_next_step_begins_when_it_has_ended(tmp_path) -> None:
    before = {"rollout": 0, "log_prob": 50, "end": 100, "validated": 160}
    timeline = write_phases(tmp_path, before, {"rollout": 161, "log_prob": 180, "end": 200})
    assert timeline.steps[1].step_s == 100 and timeline.steps[2].step_s == 40


def test_what_the_trainer_does_between_two_steps_is_not_modelled(tmp_path) -> None:
    before = {"rollout": 0, "log_prob": 50, "end": 100}
    timeline = write_phases(tmp_path, before, {"rollout": 104, "log_prob": 180, "end": 200})
    assert timeline.steps[2].step_s == 100 and timeline.trainer_late_s(1, 2) == 4


@pytest.mark.parametrize(
    ("late_s", "trainer_late_s", "cpu_share", "is_valid", "largest"),
    [
        ([0.1] * 100, 0.0, 0.2, True, 25.0),
        ([0.1] * 99 + [50.0], 0.0, 0.1, True, 50.0),  # one hiccup of the machine in a hundred
        ([4.0] * 100, 0.0, 0.2, False, 5.0),
        ([0.1] * 100, 20.0, 0.2, False, 1.0),
        ([], 0.0, 1.0, False, 5.0),
    ],
)
def test_given_lateness_or_a_busy_machine_then_a_run_is_invalid_and_says_which_speed_up_would_do(
    late_s, trainer_late_s, cpu_share, is_valid, largest
):
    validity = judge(late_s=late_s, trainer_late_s=trainer_late_s, step_s=100.0, cpu_share=cpu_share, speedup=10.0)
    assert validity.is_valid is is_valid
    assert validity.largest_speedup == pytest.approx(largest, rel=0.01)
    assert ("INVALID" in str(validity)) is not is_valid
    assert is_valid or f"rehearsal.speedup={validity.advised:g}" in str(validity)


def test_given_real_work_when_it_is_shorter_than_modelled_then_it_is_part_of_it(monkeypatch) -> None:
    real = {"now_s": 50.0}
    clock = CompressedClock(10.0, origin_s=50.0, real_s=lambda: real["now_s"])
    monkeypatch.setattr("time.sleep", lambda seconds: real.update(now_s=real["now_s"] + seconds))
    schedule = TrainingSchedule(clock)
    schedule.begin()
    real["now_s"] += 0.5  # 5 virtual seconds of this machine's own work
    assert schedule.spend(20.0) == pytest.approx(20.0)
    real["now_s"] += 3.0  # more than is modelled next: late, and caught up by what follows
    assert schedule.spend(10.0) == pytest.approx(50.0)
    assert schedule.late_s == pytest.approx(20.0)
    assert schedule.spend(40.0) == pytest.approx(70.0)
    assert schedule.late_s == 0
    real["now_s"] += 0.3  # after all that is modelled
    assert schedule.late_s == pytest.approx(3.0)
