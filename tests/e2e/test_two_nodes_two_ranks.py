"""Two nodes with two training ranks each and an engine of two tensor parallel ranks on each; one of these dies."""

import os

import pytest

from recipe.async_dapo_lab.quickstart.activation import cpu_environment

from ..support.harness import INSPECTED, ROOT, Run, inspection, ledger_closes
from ..support.ray_nodes import training_on, two_nodes

pytestmark = pytest.mark.nightly

NODES = RANKS = 2
STEPS, KILLED_IN = 4, 3
TOLERANCE = 1e-4  # of a ratio of probabilities, float32


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("nodes")
    driver = folder / "driver"
    driver.mkdir()
    plugin = cpu_environment(os.environ, code_path=ROOT)
    deaths = inspection(driver, {"deaths": [(KILLED_IN, "round", "rank", 1)]})
    knows = {name: plugin[name] for name in ("PYTHONPATH", "VERL_PLATFORM")} | deaths
    overrides = (
        f"trainer.nnodes={NODES}",
        f"actor_rollout_ref.rollout.tensor_model_parallel_size={RANKS}",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp",
        "actor_rollout_ref.actor.optim.lr=1e-3",  # so that versions differ
    )
    with (
        two_nodes(folder, gpus=(RANKS, RANKS), cpus=16, knows=knows) as nodes,
        training_on(
            nodes,
            assets,
            driver,
            module=INSPECTED,
            steps=STEPS,
            strategy="partial",
            overrides=overrides,
            engines=RANKS,
            environment=deaths,
        ) as exit_code,
    ):
        run = Run(folder=driver, exit_code=exit_code)
    assert run.exit_code == 0, run.log_tail
    return run


def test_given_a_dead_rank_on_the_second_node_then_its_engine_is_lost_and_all_steps_are_trained(run: Run) -> None:
    [killed] = run.noted("killed")
    assert (killed["step"], killed["engine"]) == (KILLED_IN, 1)
    assert run.metric("async_dapo/load_balancer/servers")[0] == NODES
    assert run.steps[-1]["async_dapo/load_balancer/lost_servers"] == 1 and len(run.steps) == STEPS
    assert all(map(ledger_closes, run.steps))


def test_given_four_training_ranks_then_every_engine_has_the_newest_weights(run: Run) -> None:
    ratios = [step[name] for step in run.steps if (name := "async_dapo/importance/staleness_0/ratio_max") in step]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=TOLERANCE) and ratios
