"""The planner and verl's own code agree: each of its trainer modes, on the same server model, takes the same time."""

import pytest

from recipe.async_dapo_lab.plan.sweep import start
from recipe.async_dapo_lab.plan.systems import verl_colocate_async, verl_separate_async, verl_sync

from ..support.verl_cluster import COLOCATE, SEPARATE, SYNC, VerlCluster
from .test_planner_agrees import SCENARIO

WARMUP, STEPS = 3, 12  # the second: counted
AGREEMENT = 0.05  # of the seconds of a step
GROUPS, SERVERS = SCENARIO.train_batch_size, SCENARIO.num_servers
SYSTEMS = {
    "sync": (SYNC, verl_sync(groups=GROUPS)),
    "colocate_async": (COLOCATE, verl_colocate_async(groups=GROUPS)),
    "separate_async": (SEPARATE, verl_separate_async(groups=GROUPS, trainer_servers=1, servers=SERVERS, parts=1)),
    "separate_async in parts": (SEPARATE, verl_separate_async(groups=GROUPS, trainer_servers=1, servers=SERVERS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_given_a_mode_of_verls_when_run_on_emulated_engines_then_its_steps_take_what_the_planner_says(
    monkeypatch, clusters, name
) -> None:
    mode, system = SYSTEMS[name]
    planned = start(SCENARIO, system)
    planned_s = [planned.step().step_s for _ in range(WARMUP + STEPS)][WARMUP:]
    with monkeypatch.context() as patched:
        habits = system.habits
        cluster = VerlCluster(
            patched,
            SCENARIO,
            mode,
            passes=planned._trainer,
            engines=SERVERS - habits.trainer_servers,
            parts=habits.parts,
        )
        clusters.append(cluster)
        measured_s = [cluster.step()[0] for _ in range(WARMUP + STEPS)][WARMUP:]
    assert sum(measured_s) == pytest.approx(sum(planned_s), rel=AGREEMENT)
