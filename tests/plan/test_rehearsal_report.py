"""When a rehearsal must not be believed, and what of its seconds is modelled."""

import pytest

from recipe.async_dapo_lab.rehearsal.report import judge


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
