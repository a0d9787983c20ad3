"""Checks a run as the recipe does, then says what its GPUs and its nodes have to hold.

`python -m recipe.async_dapo_lab.check KEY=VALUE ...`
"""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any

import psutil
import torch
from omegaconf import DictConfig, OmegaConf

from ..async_dapo import check
from ..async_dapo.config.derived import gpus_per_engine, num_engines, training_gpus
from ..async_dapo.config.values import ConfigError, Placement
from .plan.costs import ServerConstants, kv_room_tok
from .plan.hardware import MODEL_PRESETS, load_model
from .plan.inputs import KV_BYTES
from .plan.model_size import ModelShape, find_config
from .plan.scenario import Scenario
from .plan.trainer_memory import Gpu, TrainerMemory, pinned_bytes
from .rehearsal.options import KV_CACHE_DTYPE, WITH_REHEARSAL, assumed_gpu

PLANNED: Any = next(one.default for one in fields(Scenario) if one.name == "gpu_memory_utilization")
LOOP_S = 1e-4  # of a token, forward and backward; seen on a CPU, assumed of a GPU


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status, as the recipe's check does."""
    return check.main(arguments, in_words, WITH_REHEARSAL)


def in_words(config: DictConfig) -> str:
    """The engines, and what they and the trainer need of a GPU."""
    room, hardware, memory = "", "CPU", ""
    if config.trainer.device != "cpu":
        gpu, model = gpu_here() or assumed_gpu(config), _model_of(config)
        hardware = gpu.name
        if model is not None:
            room, memory = _kv_room(config, model, gpu), _memory_in_words(config, model, gpu)
            memory += _host_in_words(config, model)
        if gpu_here() is not None and config.actor_rollout_ref.actor.strategy in ("fsdp", "fsdp2"):
            memory += _loop_in_words(config)
    count = num_engines(config)
    return f"{count} engine{'s' * (count > 1)} of {gpus_per_engine(config)} x {hardware}{room}.{memory}"


def gpu_here() -> Gpu | None:
    """One of this machine's."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Gpu(name=found.name, memory_gb=found.total_memory / 1e9)


def _model_of(config: DictConfig) -> ModelShape | None:
    """None: the planner does not know it."""
    try:
        return load_model(_local(config))
    except ConfigError:
        return None


def _local(config: DictConfig) -> str:
    from verl.utils.fs import copy_to_local

    return str(copy_to_local(config.actor_rollout_ref.model.path))


def _kv_room(config: DictConfig, model: ModelShape, gpu: Gpu) -> str:
    rollout = config.actor_rollout_ref.rollout
    kv_bytes = KV_BYTES["fp8" if str(OmegaConf.select(rollout, KV_CACHE_DTYPE)).startswith("fp8") else "auto"]
    model = replace(
        model,
        kv_bytes_per_token=kv_bytes * model.kv_bytes_per_token,
        window_bytes_per_token=kv_bytes * model.window_bytes_per_token,
    )
    copies = 1 if model.experts else rollout.data_parallel_size  # experts may be shared out

    def room_tok(utilization: float) -> int:
        of_one = kv_room_tok(
            model,
            gpu,
            ServerConstants(),
            tensor_parallel_size=gpus_per_engine(config) // copies,
            gpu_memory_utilization=utilization,
        )
        return int(copies * of_one)

    asked = rollout.gpu_memory_utilization
    try:
        found = room_tok(asked)
    except ConfigError as error:
        return f": {error}"
    words = f", each with room for {found:,} tokens of KV cache"
    if asked >= PLANNED:
        return words
    share = found / room_tok(PLANNED)
    return f"{words}, {share:.0%} of what the planner assumes: gpu_memory_utilization={asked}, not {PLANNED}"


def _memory_in_words(config: DictConfig, model: ModelShape, gpu: Gpu) -> str:
    """What the FSDP trainer takes of each GPU, and whether engines fit beside it; empty where they have their own."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if config.async_dapo.placement == Placement.SEPARATE or actor.strategy not in ("fsdp", "fsdp2"):
        return ""
    trainer, keeps_kv, asked = trainer_of(config, model), not rollout.free_cache_engine, rollout.gpu_memory_utilization
    limit = trainer.engine_share(1e9 * gpu.memory_gb, keeps_kv=keeps_kv)
    stays = trainer.state_bytes if keeps_kv else trainer.resident_bytes
    words = (
        f" Of the {gpu.memory_gb:.0f} GB of a GPU weights, gradients and optimizer take {trainer.state_bytes / 1e9:.1f}"
        f" GB, a micro batch about {trainer.activation_bytes / 1e9:.1f}; {stays / 1e9:.1f} GB stay while engines "
        "generate"
    )
    if asked <= limit:
        return f"{words}."
    fsdp = "actor_rollout_ref.actor.fsdp_config."
    remedy = f"use more GPUs, or actor.strategy=fsdp2 with {fsdp}offload_policy=True"
    if limit > 0:
        offload = "free_cache_engine=True" if keeps_kv else f"{fsdp}param_offload=True and {fsdp}optimizer_offload=True"
        remedy = f"set at most {limit - 0.005:.2f}, or {offload}, or use more GPUs"
    return f"{words}: engines with gpu_memory_utilization={asked} do not fit beside it; {remedy}."


def _host_in_words(config: DictConfig, model: ModelShape) -> str:
    """What a node's memory has to hold while engines generate; empty where the trainer offloads nothing."""
    trainer, fsdp = trainer_of(config, model), config.actor_rollout_ref.actor.strategy in ("fsdp", "fsdp2")
    if not fsdp or not trainer.copies_on_host:
        return ""
    local = _local(config)
    shard = pinned_bytes(
        MODEL_PRESETS.get(local.lower()) or find_config(local)[0],
        parameters=model.parameters,
        shards=trainer.shards,
        value_bytes=trainer.value_bytes,
    )
    kv_bytes = 2**30 * (config.async_dapo.host_kv_gib or 0)
    needed = (trainer.copies_on_host * shard + kv_bytes) * config.trainer.n_gpus_per_node
    words = f" Each node's host memory holds {needed / 1e9:.0f} GB while engines generate: what is offloaded, pinned in"
    words += " powers of two" + (", and KV" if kv_bytes else "")
    here = psutil.virtual_memory().total
    if gpu_here() is None or needed <= here:
        return f"{words}."
    less = ", or a smaller async_dapo.host_kv_gib" if kv_bytes else ""
    return f"{words}. This node has {here / 1e9:.0f} GB: use more nodes{less}."


def _loop_in_words(config: DictConfig) -> str:
    """What the lack of flash-attn costs a step, if nothing takes its place; empty where it costs nothing."""
    if find_spec("flash_attn") is not None or config.actor_rollout_ref.model.use_fused_kernels:
        return ""
    longest_tok = config.data.train_batch_size * config.actor_rollout_ref.rollout.n * config.data.max_response_length
    most_s = LOOP_S * longest_tok / training_gpus(config)
    return (
        " flash-attn is not installed here: log-probs are a Python loop over tokens, "
        f"up to {most_s:,.0f} s a step (an estimate); set actor_rollout_ref.model.use_fused_kernels=True."
    )


def trainer_of(config: DictConfig, model: ModelShape) -> TrainerMemory:
    """The actor alone: a critic comes on top."""
    actor, options = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    fsdp, gpus = actor.fsdp_config, training_gpus(config)
    longest_tok = config.data.max_prompt_length + config.data.max_response_length
    return TrainerMemory(
        parameters=model.parameters,
        shards=fsdp.fsdp_size if 0 < fsdp.fsdp_size < gpus else gpus,
        layers=model.layers,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        micro_batch_tok=(
            actor.ppo_max_token_len_per_gpu
            if actor.use_dynamic_bsz
            else (actor.ppo_micro_batch_size_per_gpu or 1) * longest_tok
        ),
        value_bytes=2 if fsdp.model_dtype in ("bf16", "bfloat16", "fp16", "float16") else 4,
        is_adapter=bool(options.lora_rank),
        checkpoints_activations=options.enable_gradient_checkpointing,
        has_logits=not options.use_fused_kernels,
        offloads_weights=fsdp.param_offload,
        offloads_optimizer=fsdp.optimizer_offload,
        stays_on_host=bool(fsdp.offload_policy) and actor.strategy == "fsdp2",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
