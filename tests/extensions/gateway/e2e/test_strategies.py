"""Agents with sub-agents on the real stack, in all that a round and its engines may be: every row is trained, and
weighs what it should.
"""

from typing import NamedTuple

import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.record.keys import FRESH_K3_KL

from ....support.harness import Run, ledger_closes, train

NEEDED = {"agent_programs", "chains", "chat_completions", "responses"}
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not declared().keys() >= NEEDED, reason="an extension is missing"),
]

STEPS, ROWS = 2, 3  # a session has a row of its own, and one of each sub-agent
K3_NATS = 1e-6
LOOPS = """
- name: with_helpers
  _target_: recipe.async_dapo.extensions.gateway.black_box.BlackBoxAgent
  agent: tests.extensions.gateway.support.agents:with_helpers
"""
COMMON = (
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
    "async_dapo.max_staleness=3",
    "actor_rollout_ref.rollout.agent.default_agent_loop=with_helpers",
    "actor_rollout_ref.rollout.agent.num_workers=2",
)
SEPARATE = (
    "async_dapo.placement=separate",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "++ray_kwargs.ray_init.num_gpus=2",
    "ray_kwargs.ray_init.num_cpus=20",
)


class Kind(NamedTuple):
    strategy: str
    overrides: tuple[str, ...] = ()


KINDS = {
    "discard": Kind("discard"),
    "consistent": Kind("consistent"),
    "KV in host memory": Kind("partial_stale_kv"),
    "separate": Kind("partial", SEPARATE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_given_sub_agents_in_several_workers_then_every_row_is_trained_and_none_is_lost(
    kind: str, assets, tmp_path
) -> None:
    strategy, overrides = KINDS[kind]
    (tmp_path / "loops.yaml").write_text(LOOPS)
    loops = f"actor_rollout_ref.rollout.agent.agent_loop_config_path={tmp_path}/loops.yaml"
    own = (*COMMON, loops, *overrides)
    run = train(assets, tmp_path / "run", steps=STEPS, strategy=strategy, overrides=own)
    assert len(run.steps) == STEPS and all(map(ledger_closes, run.steps))
    assert of_all_steps(run, "failed_sessions") == sum(run.metric("async_dapo/failure/groups")) == 0
    assert of_all_steps(run, "rows") == ROWS * of_all_steps(run, "sessions") > 0
    ways = ("trained", "context_only", "rolled_back", "unanswered")
    assert of_all_steps(run, "sampled_tokens") == sum(of_all_steps(run, f"{way}_tokens") for way in ways)
    assert sum(run.metric("async_dapo/partial/diverged_tokens")) == 0
    k3s = [step[FRESH_K3_KL] for step in run.steps if FRESH_K3_KL in step]
    assert k3s and max(map(abs, k3s)) < K3_NATS, k3s


def of_all_steps(run: Run, name: str) -> float:
    return sum(step.get(f"async_dapo/gateway/{name}", 0.0) for step in run.steps)
