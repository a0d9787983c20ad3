"""A checkpoint that does not fit the options is refused when it is loaded."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.async_dapo import store, trainer
from recipe.async_dapo.config import AsyncDAPOConfig, ConfigError
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.replay_buffer import RoundReplayBuffer


@pytest.fixture
def resumed(run, tmp_path, monkeypatch):
    """A trainer that is about to load a checkpoint with one waiting group of 4."""
    config = run(f"trainer.default_local_dir={tmp_path}")
    buffer = RoundReplayBuffer(AsyncDAPOConfig.from_hydra(config), draw=lambda count: [])
    trajectories = [Trajectory(session_id=k) for k in range(4)]
    buffer.pool.add_drawn([PromptGroup(uid="a", prompt={}, drawn_at_step=1, trajectories=trajectories)])
    folder = tmp_path / "global_step_3"
    folder.mkdir()
    (folder / trainer.POOL_FILE).write_bytes(pickle.dumps(buffer.pool.state_dict()))
    monkeypatch.setattr(PPOTrainer, "_load_checkpoint", lambda self: None)
    monkeypatch.setattr(store, "forget_all_but", lambda uids, partition_id: None)
    fresh = RoundReplayBuffer(AsyncDAPOConfig.from_hydra(config), draw=lambda count: [])
    one: Any = trainer.AsyncDAPOTrainer.__new__(trainer.AsyncDAPOTrainer)
    one.__dict__ |= vars(SimpleNamespace(config=config, global_steps=3, replay_buffer=fresh))
    return one


def test_given_groups_of_the_same_size_when_loaded_then_they_are_held(resumed):
    resumed._load_checkpoint()
    assert resumed.replay_buffer.pool.num_held == 1


def test_given_groups_of_another_size_when_loaded_then_the_option_is_named(resumed):
    resumed.config.actor_rollout_ref.rollout.n = 8
    with pytest.raises(
        ConfigError, match=r"^actor_rollout_ref\.rollout\.n=8: the checkpoint holds groups of 4; resume"
    ):
        resumed._load_checkpoint()
