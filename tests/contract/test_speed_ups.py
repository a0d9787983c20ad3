"""Published steps, planned from another step of the same job."""

import pytest

from benchmarks.speed_ups.run import _others, _planned
from benchmarks.speed_ups.settings import JOBS, Job
from recipe.async_dapo_lab.plan.systems import verl_colocate_async, verl_sync

SMALL = {
    "servers": 2, "train_batch_size": 8, "rollout_n": 4, "max_response_length": 2048, "length_median_tok": 400.0,
    "valid_share": 1.0, "steps": 4, "warmup": 2,
}  # fmt: skip


def test_every_published_step_is_planned_from_another_one():
    for job in JOBS:
        systems = {system.name for system, _ in job.steps}
        planned = [system.name for base, _ in job.steps[:2] for system, step_s in _others(job, base) if step_s]
        assert set(planned) == systems and len(planned) == len(systems)


@pytest.mark.slow
def test_engines_that_give_one_step_are_those_that_the_other_is_planned_with():
    """The slower the base was, the slower is the other."""
    sync, colocate = verl_sync(groups=8, poll_s=0.0), verl_colocate_async(groups=8)
    planned = []
    for base_s in (20.0, 40.0):
        job = Job(source="small", inputs=SMALL, steps=((sync, base_s), (colocate, 10.0)))
        [row] = _planned(job, sync, base_s, _others(job, sync))
        assert row["base_planned_s"] == pytest.approx(base_s, rel=0.02)
        planned.append(row["planned"])
    assert planned[0] < planned[1] < 40.0
