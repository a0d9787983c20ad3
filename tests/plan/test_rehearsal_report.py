"""When a rehearsal must not be believed, and what of its seconds is modelled."""

import pytest

from recipe.async_dapo_lab.rehearsal.options import CompressedClock
from recipe.async_dapo_lab.rehearsal.report import judge
from recipe.async_dapo_lab.rehearsal.training import TrainingSchedule


@pytest.mark.parametrize(
    ("late_s", "trainer_late_s", "is_valid", "largest"),
    [
        ([0.1] * 99 + [50.0], 0.0, True, 200.0),  # one hiccup of the machine in a hundred
        ([4.0] * 100, 0.0, False, 5.0),
        ([0.1] * 100, 20.0, False, 1.0),
        ([], 0.0, True, 10.0),
    ],
)
def test_given_lateness_then_a_run_is_invalid_and_says_which_speed_up_would_do(
    late_s, trainer_late_s, is_valid, largest
):
    validity = judge(late_s=late_s, trainer_late_s=trainer_late_s, step_s=100.0, speedup=10.0)
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
