"""The one line a step writes."""

from recipe.async_dapo.extensions.loggers.step_line import Pace, step_line
from recipe.async_dapo.record import keys

STEP = {
    keys.STEP_S: 41.24,
    keys.ROLLOUT_S: 28.0,
    "timing_s/old_log_prob": 3.0,
    "timing_s/update_actor": 8.02,
    keys.TRAINED_GROUPS: 512.0,
    keys.REJECTED_RATIO: 0.381,
    keys.INTERRUPTED: 91.0,
    keys.IDLE_RATIO: 0.14,
    keys.OFF_POLICY: 0.11,
    keys.FAILED_GROUPS: 3.0,
}


def test_a_step_is_one_line_with_what_one_looks_for() -> None:
    assert step_line(12, STEP) == (
        "step 12 | 41.2 s (rollout 28, train 11) | B 512 | filtered 38 % | interrupted 91 | empty places 14 % | "
        "off-policy 11 % | failed 3"
    )
    left_out = step_line(1, STEP | {keys.SKIPPED_UPDATE: 1.0})
    assert left_out.endswith("failed 3 | update left out: its gradient is not finite")
    assert step_line(1, STEP | {keys.SKIPPED_UPDATE: 0.0}) == step_line(1, STEP)
    assert step_line(1, STEP | {keys.CALLS_FAILED_RATIO: 0.73}).endswith("failed 3 | calls failed 73 %")
    assert "calls" not in step_line(1, STEP | {keys.CALLS_FAILED_RATIO: 0.2})


def test_a_validation_before_training_and_a_step_of_verl_alone_leave_out_what_they_lack() -> None:
    assert step_line(0, {"val-core/math/acc/mean@1": 0.4567}) == "step 0 | accuracy 0.457 (math/acc/mean@1)"
    assert step_line(1, {keys.STEP_S: 321.7, keys.ROLLOUT_S: 0.123}) == "step 1 | 322 s (rollout 0.123)"


def test_of_a_run_whose_steps_are_known_the_line_says_how_many_and_the_time_left() -> None:
    pace = Pace(14)
    assert step_line(0, {"val-core/math/acc/mean@1": 0.5}, pace=pace) == "step 0/14 | accuracy 0.5 (math/acc/mean@1)"
    lines = [step_line(step, {keys.STEP_S: 100.0 if step == 1 else 20.0}, pace=pace) for step in range(1, 15)]
    assert lines[0] == "step 1/14 | 100 s | 22 min left"
    assert lines[10] == "step 11/14 | 20 s | 60 s left"  # the first step is forgotten
    assert lines[-1] == "step 14/14 | 20 s"
    validated = step_line(2, {keys.STEP_S: 10.0, keys.VALIDATE_S: 30.0}, pace=Pace(3))
    assert validated.endswith("| 40 s left")
