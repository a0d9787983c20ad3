"""The trainer's ranks, in one process that computes nothing."""

import logging
import os
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu

from ...async_dapo.record.checkpoint_folder import MODEL_PARTS
from .engine import LOG_PROB

logger = logging.getLogger(__name__)

ENTROPY = 0.5  # of every token [nats]


class EmulatedRank(Worker):
    """Stands for all ranks of verl's `ActorRolloutRefWorker`: its calls, with constant results, at once.

    The seconds that they would take are waited for in the trainer (`TimedRanks`).
    """

    def __init__(self, config: Any, role: str, **_: Any) -> None:
        super().__init__()
        self._role = role

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        for mesh in ("actor", "ref"):
            self._register_dispatch_collect_info(mesh, dp_rank=0, is_collect=True)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        return _log_probs(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        return _log_probs(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict:
        metrics = {"pg_loss": [0.0], "grad_norm": [0.0], "lr": [0.0], "mfu": [0.0]}
        return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": metrics})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, local_path: str, *_: Any, **__: Any) -> None:
        folder = Path(local_path)
        os.makedirs(folder, exist_ok=True)
        for part in MODEL_PARTS.values():
            (folder / f"{part}_rehearsed").write_text("a rehearsal has no weights\n")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def call_extension(self, *_: Any) -> int:
        """What `mixture` asks for: there are no earlier weights, of 0 bytes."""
        return 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, *_: Any, **__: Any) -> None:
        """There are no weights: nothing to load, to put aside or to profile, and no loss."""

    save_model_to_cpu = restore_model_from_cpu = clear_cpu_model = load_checkpoint
    start_profile = stop_profile = set_loss_fn = load_checkpoint


def _log_probs(data: TensorDict) -> TensorDict:
    """As verl's engine returns them: nested, [B, prompt + response]."""
    tokens = data["input_ids"]

    def constant(value: float) -> torch.Tensor:
        values = torch.full_like(tokens.values(), value, dtype=torch.float32)
        return torch.nested.nested_tensor_from_jagged(values, offsets=tokens.offsets())

    metrics = {"mfu": [0.0]}
    return tu.get_tensordict(
        tensor_dict={"log_probs": constant(LOG_PROB), "entropy": constant(ENTROPY)},
        non_tensor_dict={"metrics": metrics},
    )
