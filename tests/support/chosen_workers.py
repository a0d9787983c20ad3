"""Which training workers a trainer has verl build."""

import pytest
import ray
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.engine_workers import TrainingWorker

from recipe.async_dapo.training.trainer import AsyncDAPOTrainer
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker


def assert_policies_have_the_recipes_worker(
    monkeypatch: pytest.MonkeyPatch, trainer_class: type[AsyncDAPOTrainer]
) -> None:
    """A critic's stays verl's."""
    verls = ray.remote(TrainingWorker)
    monkeypatch.setattr(PPOTrainer, "_init_resource_pool_mgr", lambda self: None)
    trainer = trainer_class.__new__(trainer_class)
    trainer.train_dataset, trainer.val_dataset, trainer.role_worker_mapping = (
        (),
        (),
        dict.fromkeys((Role.Actor, Role.RefPolicy, Role.Critic), verls),
    )
    trainer._init_resource_pool_mgr()
    assert trainer.role_worker_mapping[Role.Critic] is verls  # whose methods verl's controller calls by name
    for role in (Role.Actor, Role.RefPolicy):
        chosen = trainer.role_worker_mapping[role].__ray_metadata__.modified_class
        assert issubclass(chosen, AsyncDAPOActorRolloutRefWorker)
