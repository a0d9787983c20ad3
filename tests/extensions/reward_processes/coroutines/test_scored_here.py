"""A coroutine function that is called in verl's reward worker, and what is counted of functions in processes."""

import re
from functools import partial

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.core.users_errors import RaisedElsewhere
from recipe.async_dapo.extensions.reward_processes import wiring
from recipe.async_dapo.extensions.reward_processes.pool import RewardProcessDied, RewardProcessKilled
from recipe.async_dapo.runtime.containment import contain_tasks

from ....coroutines.test_containment import exits, hook_is_put_back, kinds  # noqa: F401
from ....support.fakes import ScriptedReward
from ....support.simulated_options import options


@exits
@kinds
async def test_given_a_reward_function_in_verl_s_worker_that_exits_then_its_call_fails(error, raises, monkeypatch):
    monkeypatch.setattr(wiring, "_load", lambda path, name: partial(raises, error))
    contain_tasks()
    isolated = OmegaConf.create({"function": {"path": "f", "name": "f", "timeout_s": 60.0, "constants": {}}})
    with pytest.raises(RaisedElsewhere, match=re.escape(repr(error))):
        await wiring.compute_score_here(isolated=isolated)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_each_step_tells_how_many_processes_its_calls_have_ended(start, lost):
    errors = [RewardProcessKilled("no answer"), RewardProcessDied("has ended")][:lost]
    cluster = start(options(extensions=("reward_processes",)))
    reward = ScriptedReward(*errors, 0.5)

    async def compute_score(outputs, sample):
        await reward(outputs, sample)
        outputs[-1].reward_score = outputs[-1].extra_fields["reward_extra_info"]["acc"] = float(reward.calls % 2)

    for worker in cluster.workers:
        worker._compute_score = compute_score
    steps = cluster.steps(3)
    assert sum(step["async_dapo/failure/killed_reward_processes"] for step in steps) == lost
