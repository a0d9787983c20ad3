"""A checkpoint's weights, written as a model by the command that a refusal names: one rank begins with them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from verl.workers.engine_workers import ActorRolloutRefWorker

from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker

from ....support.composed_runs import compose_run, refusal, valid_overrides, write_files
from ....support.ranks import run_ranks

RANKS, MODEL = 2, "actor_rollout_ref.model.path"
OVERRIDES = (
    "actor_rollout_ref.model.use_remove_padding=False",
    "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "actor_rollout_ref.actor.use_torch_compile=False",
)


@torch.no_grad()
def save(files: Path) -> None:
    """Move the weights of a training rank, and write its part of a checkpoint, and all weights beside it."""
    config = compose_run([*valid_overrides(files), *OVERRIDES])
    worker = AsyncDAPOActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    ActorRolloutRefWorker.init_model(worker)
    parameters = dict(worker.actor.engine.module.named_parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())
    for parameter in parameters.values():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local.add_(0.05 * torch.randn(local.shape, generator=generator))
    weights = {name: parameter.full_tensor() for name, parameter in parameters.items()}
    worker.save_checkpoint(f"{files}/checkpoint/actor", global_step=1)
    if dist.get_rank() == 0:
        torch.save(weights, f"{files}/weights")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl announces at every check that GRPO needs none
def test_given_a_checkpoint_of_two_ranks_when_written_as_a_model_then_one_rank_can_begin_with_its_weights(tmp_path):
    def run(*more: str) -> DictConfig:
        return compose_run([*valid_overrides(tmp_path), *more])

    write_files(tmp_path)
    run_ranks(save, tmp_path, ranks=RANKS)
    refused = refusal(run, f"{MODEL}={tmp_path}/checkpoint/actor/huggingface")
    [command] = re.findall(r"python (-m verl\.model_merger merge .*) MODEL;", refused)
    subprocess.run([sys.executable, *shlex.split(command), f"{tmp_path}/merged"], check=True, timeout=500)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    weights = torch.load(Path(tmp_path, "weights"))
    assert all(torch.equal(merged[name], weight.bfloat16()) for name, weight in weights.items()) and weights
    check_all(run(f"{MODEL}={tmp_path}/merged"))
