"""When a rehearsal must not be believed, and what of its seconds is modelled."""

import pytest

from recipe.async_dapo_lab.plan.candidates import bound_of
from recipe.async_dapo_lab.rehearsal.report import Rehearsal, Step, judge, table

from ..support.plan_settings import small_scenario


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


@pytest.mark.parametrize("late_s", [0.1, 4.0])
def test_what_must_not_be_believed_says_so_above_the_table(late_s):
    measures = dict.fromkeys(Step.__slots__, 1.0) | {"step": 1}
    validity = judge(late_s=[late_s] * 100, trainer_late_s=0.0, step_s=100.0, speedup=10.0)
    shown = table(
        Rehearsal(
            system="partial", setting="any", speedup=10.0, steps=[Step(**measures)], warmup=0, mean=Step(**measures),
            bound=bound_of(small_scenario()), num_gpus=2, validity=validity, wall_s=60.0, peak_memory_gb=1.0,
        )
    )  # fmt: skip
    assert shown.count(str(validity)) == 1
    assert shown.startswith("INVALID") is not validity.is_valid
