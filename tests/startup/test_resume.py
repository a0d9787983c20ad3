"""What a checkpoint holds of the rollout, and that it is refused where it does not fit the options."""

import pytest

from recipe.async_dapo.config import AsyncDAPOConfig, ConfigError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.training.replay_buffer import RoundReplayBuffer
from recipe.async_dapo.training.rollout_state import from_frames, to_frames

from ..support.composed_runs import ComposeRun


def buffer(run: ComposeRun, *overrides: str) -> RoundReplayBuffer:
    config = run("async_dapo.max_partial_share=0.5", "async_dapo.over_sampling_batch_size=32", *overrides)
    return RoundReplayBuffer(AsyncDAPOConfig.from_hydra(config), draw=lambda count: [])


@pytest.fixture
def checkpoint(run) -> list[bytes]:
    """Of a run that holds a waiting group of 4, starts fewer groups than it may, and has trained one."""
    held = buffer(run)
    trajectories = [Trajectory(session_id=k) for k in range(4)]
    held.pool.add_drawn([PromptGroup(uid="a", prompt={}, drawn_at_step=1, trajectories=trajectories)])
    held._over_sampling.observe(0.9)
    held._lengths.observe([GroupOutcome(prompt_uid="b", verdict=Verdict.VALID, response_lens_tok=(3, 5))], [])
    held._lengths.mark_trained(["b"])
    return list(to_frames(held.state()))


def test_given_a_checkpoint_when_loaded_then_the_run_goes_on_where_it_was(run, checkpoint):
    resumed = buffer(run)
    resumed.restore(from_frames(checkpoint))
    assert resumed.pool.at_hand.expected_valid(1.0) == 1
    assert resumed._over_sampling.groups_to_hold == 8 + 24 // 2
    assert resumed._lengths.trained.mean_tok == resumed._lengths.dispatched.mean_tok == 4


def test_given_fewer_groups_to_hold_or_to_remember_when_loaded_then_the_options_of_this_run_hold(run, checkpoint):
    resumed = buffer(run, "async_dapo.over_sampling_batch_size=10")
    resumed.restore(from_frames(checkpoint))
    assert resumed._over_sampling.groups_to_hold == 10


def test_given_groups_of_another_size_when_loaded_then_the_option_is_named(run, checkpoint):
    resumed = buffer(run, "actor_rollout_ref.rollout.n=8")
    with pytest.raises(
        ConfigError, match=r"^actor_rollout_ref\.rollout\.n=8: the checkpoint holds groups of 4; resume"
    ):
        resumed.restore(from_frames(checkpoint))
