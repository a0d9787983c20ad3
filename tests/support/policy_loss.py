"""A batch of four trajectories, and its loss: options -> wiring -> verl's own advantage and loss."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import assign_non_tensor
from verl.workers.utils.losses import ppo_loss

from recipe.async_dapo import store
from recipe.async_dapo.config.derived import wire_importance_sampling
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.startup.rules import check_options
from recipe.async_dapo.training.passes import Passes
from recipe.async_dapo.training.step_updates import step_updates
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from .ranks import nested

CORRECTION = "algorithm.rollout_correction."
NONE = "async_dapo.importance_sampling=none"
BYPASS = "async_dapo.importance_sampling=bypass"
DECOUPLED = "async_dapo.importance_sampling=decoupled"
SEQUENCE_MASK = "rollout_rs=seq_mean_k1 rollout_rs_threshold=0.3_1.1"

KEYS = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
PROMPT_LEN = 2
RESPONSE_LENS = [3, 5, 4, 2]
BEHAVIOUR = -2.0  # log-prob of every token under the policy that sampled it [nats]


def proximal_minus_behaviour(trajectory: int, position: int) -> float:
    """How far the newest policy has moved from the one that sampled a token [nats]."""
    return [0.0, 1.2, -0.6, 0.05][trajectory] + 0.09 * (-1) ** position


def current_minus_proximal(trajectory: int, position: int) -> float:
    """How far the policy being trained has moved since [nats]."""
    return [0.0, 0.02, -0.03, 0.01][trajectory] * (1 + position)


def per_token(value: Callable[[int, int], float]) -> list[torch.Tensor]:
    return [torch.tensor([value(i, t) for t in range(length)]) for i, length in enumerate(RESPONSE_LENS)]


class Queue:
    """The data plane of one batch, in this process."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {
            "uid": NonTensorStack(*[key.split("_")[0] for key in KEYS]),
            "prompts": nested([torch.ones(PROMPT_LEN)] * 4),
            "responses": nested(per_token(lambda i, t: 1.0)),
            "response_mask": nested([torch.ones(length, dtype=torch.int64) for length in RESPONSE_LENS]),
            "rm_scores": nested([torch.eye(length)[-1] * (i % 2) for i, length in enumerate(RESPONSE_LENS)]),
            "rollout_log_probs": nested(per_token(lambda i, t: BEHAVIOUR)),
            "old_log_probs": nested(per_token(lambda i, t: BEHAVIOUR + proximal_minus_behaviour(i, t))),
            "loss_mask": nested([torch.ones(length, dtype=torch.int64) for length in RESPONSE_LENS]),
            "policy_versions": nested([torch.zeros(length, dtype=torch.int32) for length in RESPONSE_LENS]),
        }

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields if name in self.fields}, batch_size=4)

    def kv_batch_put(self, *, keys: list[str], partition_id: str, fields: TensorDict) -> KVBatchMeta:
        self.fields |= dict(fields.items())
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{}] * 4)


@pytest.fixture
def loss(run, monkeypatch):
    """The policy loss of one mini-batch under the given overrides."""

    def compute(
        *overrides: str,
        advantage: Any = AsyncDAPOTrainer._compute_advantage,
        metrics: dict[str, Any] | None = None,
        oldest_version: int = 0,
        passes: type[Passes] = Passes,
        **changed: torch.Tensor,
    ) -> float:
        config = run("actor_rollout_ref.rollout.calculate_log_probs=True", *overrides)
        options = AsyncDAPOConfig.from_hydra(config)
        check_options(config, options)
        wire_importance_sampling(config, options.importance_sampling)
        queue = Queue()
        queue.fields |= changed
        monkeypatch.setattr(trainer_base, "tq", queue)
        monkeypatch.setattr(store, "tq", queue)
        batch = KVBatchMeta(partition_id="train", keys=KEYS, tags=[{"min_global_steps": 0}] * 4)
        withheld_tok = store.withhold(batch, oldest_version=oldest_version)
        trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
        trainer.config, trainer.global_steps, trainer.use_critic = config, 1, False
        workers = SimpleNamespace(_dispatch_info={"actor": [0]}, set_loss_fn=lambda loss: None)
        trainer.actor_rollout_wg = workers
        trainer.replay_buffer = SimpleNamespace(withheld_tok=withheld_tok)
        trainer._step_updates = step_updates(config, has_critic=False)
        trainer._passes = passes(config, options, workers)
        trainer._passes.begin()
        if config.algorithm.rollout_correction.bypass_mode:  # else the trainer asks the actor, which said what is there
            trainer._compute_old_log_prob(batch, {})
        advantage(trainer, batch, {} if metrics is None else metrics)
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        names = [name for name in queue.fields if name not in ("uid", "rm_scores", "rollout_log_probs", "returns")]
        data = TensorDict({name: queue.fields[name] for name in names}, batch_size=4)
        num_tokens = int(queue.fields["loss_mask"].values().sum())  # as FSDPEngine.forward_backward_batch counts them
        assign_non_tensor(data, dp_size=1, batch_num_tokens=num_tokens, global_batch_size=4)
        current = per_token(
            lambda i, t: BEHAVIOUR + proximal_minus_behaviour(i, t) + current_minus_proximal(i, t)
        )  # a model's output for a token stands one place before it
        outputs = [torch.cat([torch.zeros(PROMPT_LEN - 1), row, torch.zeros(1)]) for row in current]
        value, _ = ppo_loss(actor, {"log_probs": nested(outputs)}, data)
        return float(value)

    return compute


def expected(log_ratio: Callable[[int, int], float], weight: Callable[[int, int], float] = lambda i, t: 1.0) -> float:
    """DAPO's token-mean of -A min(r, clip r), by hand: clip 0.2 / 0.28, dual clip 10, rewards 0 and 1."""
    advantage = 0.5 / (math.sqrt(0.5) + 1e-6)
    total = 0.0
    for i, length in enumerate(RESPONSE_LENS):
        a = advantage if i % 2 else -advantage
        for t in range(length):
            r = math.exp(log_ratio(i, t))
            token = -min(r * a, min(max(r, 0.8), 1.28) * a)
            total += weight(i, t) * (token if a > 0 else min(token, -a * 10.0))
    return total / sum(RESPONSE_LENS)


def ratio(i: int, t: int) -> float:
    return math.exp(proximal_minus_behaviour(i, t))
