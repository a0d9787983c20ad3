"""Checks a run as the recipe does, then describes it: `python -m recipe.async_dapo_lab.check <hydra overrides>`.

One paragraph says what will be trained, on what, how much of it at once, and what memory that takes.
"""

import sys
from collections.abc import Sequence
from importlib import metadata

import torch
from omegaconf import DictConfig

from ..async_dapo import check
from ..async_dapo.config.options import AsyncDAPOConfig, gpus_per_engine, num_engines, training_gpus
from ..async_dapo.config.values import ConfigError, Placement
from ..async_dapo.core.concurrency import EngineLoad
from ..async_dapo.core.leases import server_calls
from .plan.costs import ServerConstants, kv_room_tok
from .plan.hardware import ModelShape, load_model
from .plan.trainer_memory import Gpu, TrainerMemory
from .rehearsal.options import WITH_REHEARSAL, assumed_gpu

BUFFERED_BYTES_PER_TOK = 9  # a token's id and log-prob, and its share of what is noted for a delivery


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status, as the recipe's check does."""
    _name_vllm_as_verl_does()
    return check.main(arguments, described, WITH_REHEARSAL)


def _name_vllm_as_verl_does() -> None:
    """Where vLLM's CPU build is installed, and its plugin is off, as in a check of a run on GPUs."""
    import verl  # noqa: F401 (brings the plugin, if it is on)

    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        from .cpu.plugin.async_dapo_cpu.compat import find_vllm_under_its_cpu_name

        find_vllm_under_its_cpu_name()


def described(config: DictConfig) -> str:
    return run_in_words(config, AsyncDAPOConfig.from_hydra(config))


def run_in_words(config: DictConfig, options: AsyncDAPOConfig) -> str:
    room_tok, hardware, memory = None, "CPU", ""
    if config.trainer.device != "cpu":
        gpu, model = gpu_here() or assumed_gpu(config), _model_of(config)
        hardware = gpu.name
        if model is not None:
            room_tok, memory = _kv_room_tok(config, model, gpu), _memory_in_words(config, model, gpu)
    count = num_engines(config)
    engines = f"{count} engine{'s' * (count > 1)} of {gpus_per_engine(config)} x {hardware}"
    room = (
        "; how much its KV cache holds is known once vLLM runs."
        if room_tok is None
        else f", each with room for {room_tok:,} tokens of KV cache."
    )
    batch = options.target_valid_groups * options.rollout_n
    held = options.over_sampling().groups_to_hold
    buffered_bytes = held * options.rollout_n * options.max_response_length * BUFFERED_BYTES_PER_TOK
    age = "no limit on staleness" if options.max_staleness is None else f"at most {options.max_staleness} versions old"
    return (
        f"Each step trains on B = {options.target_valid_groups} valid groups of n = {options.rollout_n} "
        f"({batch:,} trajectories of up to {options.max_response_length:,} tokens; {_valid(options)}). "
        f"{held:,} groups are held at the start of a round. Strategy {options.rollout_strategy}, stop rule "
        f"{options.stop_rule}, tokens {age}, correction {options.importance_sampling}. {engines}{room} "
        f"{_in_flight(config, options, count, room_tok)} "
        + (
            f"Trajectories kept for a later step take up to {_memory(buffered_bytes)} of the trainer's memory."
            if options.keeps_tokens and options.max_staleness != 0
            else "Nothing that was interrupted is kept."
        )
        + memory
    )


def _memory(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _valid(options: AsyncDAPOConfig) -> str:
    metric = options.filter.metric
    return "no filter" if metric is None else f"valid: `{metric}` varies within the group"


def _in_flight(config: DictConfig, options: AsyncDAPOConfig, engines: int, room_tok: int | None) -> str:
    """How many requests run at once, as the load balancer would decide in the first round."""
    rollout = config.actor_rollout_ref.rollout
    max_num_seqs = rollout.max_num_seqs * rollout.data_parallel_size
    most_each = options.max_loads_per_server or server_calls(max_num_seqs) - 1
    capacity = engines * most_each
    if options.rollout_pool_size is None:
        return f"{min(options.lanes_hold, capacity):,} requests in flight at most."
    if options.fixed_pool_size is not None:
        return f"{min(options.fixed_pool_size, capacity):,} requests in flight."
    if room_tok is None:
        return f"Requests in flight size themselves, {capacity:,} at most."
    balance = options.balance(most_per_server=most_each)
    load = EngineLoad(kv_room_tok=room_tok, max_num_seqs=max_num_seqs)
    balance.leases.add_servers([f"engine {i}" for i in range(engines)])
    balance.open({f"engine {i}": load for i in range(engines)})
    most = options.round_size().most_unfinished(1.0)
    first = balance.capacity if most is None else min(balance.capacity, most)
    return f"Requests in flight size themselves, {first:,} in the first round."


def gpu_here() -> Gpu | None:
    """One of this machine's."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Gpu(name=found.name, memory_gb=found.total_memory / 1e9)


def _model_of(config: DictConfig) -> ModelShape | None:
    """None: the planner does not know it."""
    from verl.utils.fs import copy_to_local

    try:
        return load_model(copy_to_local(config.actor_rollout_ref.model.path))
    except ConfigError:
        return None


def _kv_room_tok(config: DictConfig, model: ModelShape, gpu: Gpu) -> int | None:
    """Of an engine; None: the weights leave no room."""
    try:
        return kv_room_tok(
            model,
            gpu,
            ServerConstants(),
            tensor_parallel_size=gpus_per_engine(config),
            gpu_memory_utilization=config.actor_rollout_ref.rollout.gpu_memory_utilization,
        )
    except ConfigError:
        return None


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


def trainer_of(config: DictConfig, model: ModelShape) -> TrainerMemory:
    """The actor alone: a critic comes on top."""
    actor, options = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    fsdp = actor.fsdp_config
    longest_tok = config.data.max_prompt_length + config.data.max_response_length
    return TrainerMemory(
        parameters=model.parameters,
        shards=fsdp.fsdp_size if fsdp.fsdp_size > 0 else training_gpus(config),
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
