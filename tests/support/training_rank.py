"""verl's FSDP worker of a tiny model, one process a rank, and a batch for it."""

from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested

from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker

from .composed_runs import CPU_WORKER
from .ranks import nested

ROWS, PROMPT_TOK, NEWEST = 8, 5, 6
ACTOR, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.model."
OVERRIDES = (
    "algorithm.rollout_correction.rollout_is=token",
    *CPU_WORKER,
)
PACKED, PADDED = f"{MODEL}use_remove_padding=True", f"{MODEL}use_remove_padding=False"
BYPASS = (
    PACKED,
    "algorithm.rollout_correction.bypass_mode=True",
    f"{ACTOR}policy_loss.loss_mode=dppo_kl",
    f"{ACTOR}clip_ratio_low=0.05",
    f"{ACTOR}clip_ratio_high=0.05",
)
TIMED = ("mfu", "_gb")


def make_batch(seed: int) -> TensorDict:
    """Trajectories of three policy versions, up to 1.5 nats from the trainer; a micro-batch of two without a token."""
    torch.manual_seed(seed)
    lens = [int(length) for length in torch.randint(1, 25, (ROWS,))]
    rows: dict[str, list[Tensor]] = {name: [] for name in ("responses", "input_ids", "position_ids", "response_mask")}
    rows |= {name: [] for name in ("rollout_log_probs", "advantages", "policy_versions", "prompts")}
    for number, length in enumerate(lens):
        input_ids = torch.randint(3, 12, (PROMPT_TOK + length,))
        rows["prompts"].append(input_ids[:PROMPT_TOK])
        rows["responses"].append(input_ids[PROMPT_TOK:])
        rows["input_ids"].append(input_ids)
        rows["position_ids"].append(torch.arange(len(input_ids)))
        rows["response_mask"].append((torch.rand(length) < 0.8).long() * (number not in (2, 3)))
        rows["rollout_log_probs"].append(-2.7 + 3 * (torch.rand(length) - 0.5))
        rows["advantages"].append(torch.full((length,), float(torch.randn(()))))
        rows["policy_versions"].append(torch.randint(NEWEST - 2, NEWEST + 1, (length,), dtype=torch.int32))
    data = TensorDict({name: nested(values) for name, values in rows.items()}, batch_size=[ROWS])
    data["loss_mask"] = nested([mask.clone() for mask in rows["response_mask"]])
    data["multi_modal_inputs"] = NonTensorStack(*({} for _ in lens))
    return data


class Rank:
    """A training rank with a model of its own, seeded alike each time.

    Args:
        loss: in place of verl's.
    """

    def __init__(self, config: DictConfig, loss: Any = None) -> None:
        torch.manual_seed(0)
        self.config, self.worker = config, AsyncDAPOActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
        ActorRolloutRefWorker.init_model(self.worker)
        if loss is not None:
            self.worker.set_loss_fn(loss)

    def log_probs(self, data: TensorDict) -> tuple[Tensor, Tensor]:
        data = data.clone(recurse=False)
        tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False, temperature=1.0)
        found = self.worker.compute_log_prob(data)
        return tuple(response_from_nested(found[name], data["response_mask"]) for name in ("log_probs", "entropy"))

    def update(self, data: TensorDict, **told: Any) -> tuple[list[Tensor], dict[str, Any]]:
        """All trained parameters after it, and its metrics as the trainer has them."""
        data, rows = data.clone(recurse=False), len(data) * dist.get_world_size()
        exact = self.config.actor_rollout_ref.actor.calculate_entropy
        tu.assign_non_tensor(data, calculate_entropy=exact, temperature=1.0, epochs=1, seed=0, **told)
        tu.assign_non_tensor(data, global_batch_size=rows, mini_batch_size=rows, dataloader_kwargs={"shuffle": False})
        output = self.worker.update_actor(data)
        metrics = reduce_metrics(rename_dict(tu.get(output, "metrics"), "actor/"))
        return self.parameters(), {name: value for name, value in metrics.items() if not name.endswith(TIMED)}

    def parameters(self) -> list[Tensor]:
        trained = [p for p in self.worker.actor.engine.module.parameters() if p.requires_grad]
        return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in trained]
