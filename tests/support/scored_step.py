"""A step of two trajectories in the data plane, whose log-probs are as far from the engines' as a test says."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base

from recipe.async_dapo import store
from recipe.async_dapo.config.derived import wire_importance_sampling
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.training.passes import passes_of
from recipe.async_dapo.training.step_updates import step_updates
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from .ranks import nested

PROMPT_LEN, LENS, SAMPLED = 2, (600, 1000), -2.0


class Actor:
    """A batch of two trajectories in the data plane, and the workers that score it."""

    _dispatch_info: ClassVar = {"actor": [0]}  # one rank

    def __init__(self, versions: tuple[int, int], off: tuple[float, float], lens: tuple[int, int]) -> None:
        self.off, self.lens, self.calls = off, lens, 0
        self.fields: dict[str, Any] = {
            "responses": nested([torch.ones(length) for length in lens]),
            "response_mask": nested([torch.ones(length, dtype=torch.int64) for length in lens]),
            "rollout_log_probs": nested([torch.full((length,), SAMPLED) for length in lens]),
            "policy_versions": nested(
                [torch.full((length,), of, dtype=torch.int32) for length, of in zip(lens, versions, strict=True)]
            ),
        }
        tags = [{"min_global_steps": 0}, {"min_global_steps": versions[1]}]
        self.batch = KVBatchMeta(partition_id="train", keys=["a_0_0", "a_1_0"], tags=tags)

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        self.calls += 1
        rows = [
            torch.full((PROMPT_LEN + length,), SAMPLED + off) for length, off in zip(self.lens, self.off, strict=True)
        ]
        self.fields |= {"log_probs": nested(rows), "entropy": nested(rows)}
        return batch

    def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
        self.told = {**batch.extra_info}
        return {"metrics": {"mfu": 0.0}}

    def kv_batch_get(self, *, select_fields: list[str], **_: Any) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields}, batch_size=2)

    def kv_batch_put(self, *, fields: TensorDict, **_: Any) -> KVBatchMeta:
        self.fields |= dict(fields.items())
        return self.batch


@pytest.fixture
def step(run, monkeypatch, request) -> Callable[..., Actor]:
    """Lets a trainer score a batch in a step, and update: of which versions, how far from the engines [nats]. Steps of
    a test are those of one life, whose extensions are the module's `EXTENSIONS`.
    """
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    life: list[tuple[str, ...]] = []  # its overrides

    def begin(*overrides: str) -> None:
        life.append(overrides)
        trainer.config = run("actor_rollout_ref.rollout.calculate_log_probs=True", *overrides)
        options = AsyncDAPOConfig.from_hydra(trainer.config)
        wire_importance_sampling(trainer.config, options.importance_sampling)
        trainer._step_updates = step_updates(trainer.config, has_critic=False)
        workers = SimpleNamespace(set_loss_fn=lambda loss: None)
        trainer._passes = passes_of(request.module.EXTENSIONS)(trainer.config, options, workers)

    def score(
        number: int, versions: tuple[int, int], off: tuple[float, float], *overrides: str, lens: tuple[int, int] = LENS
    ) -> Actor:
        if not life:
            begin(*overrides)
        assert overrides == life[0]
        trainer.global_steps, trainer.actor_rollout_wg = number, Actor(versions, off, lens)
        actor: Actor = trainer.actor_rollout_wg
        monkeypatch.setattr(trainer_base, "tq", actor)
        monkeypatch.setattr(store, "tq", actor)
        trainer._compute_old_log_prob(actor.batch, {})
        trainer._update_actor(actor.batch, {})
        return actor

    return score
