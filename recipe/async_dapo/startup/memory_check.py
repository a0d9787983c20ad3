"""Whether trainer and engines fit on the same GPUs; `core/trainer_memory.py` has the arithmetic."""

import torch
from omegaconf import DictConfig

from ..config import training_gpus
from ..core.trainer_memory import ASSUMED_GPU, Gpu, TrainerMemory
from ..option_values import ConfigError, Placement
from .model_check import count_parameters, load_by_verl

_ROLLOUT = "actor_rollout_ref.rollout."
_FSDP = "actor_rollout_ref.actor.fsdp_config."
_HALF = ("bf16", "bfloat16", "fp16", "float16")


def check_memory(config: DictConfig, assumed_gpu: Gpu = ASSUMED_GPU) -> str:
    """Compare what engines may take with what the trainer leaves them.

    Refused is what is certain: weights, gradients and optimizer, on this machine's GPUs. A warning is what counts
    activations too, which depend on the lengths, or what assumes a GPU.

    Args:
        assumed_gpu: the one to count with where this machine has none.

    Returns:
        The warning; empty where all fits, or where it is not known.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    is_separate = config.async_dapo.placement == Placement.SEPARATE
    if is_separate or config.trainer.device == "cpu" or actor.strategy not in ("fsdp", "fsdp2"):
        return ""
    if (parameters := count_parameters(config)) is None:
        return ""
    here = gpu_here()
    gpu = here or assumed_gpu
    memory_bytes, trainer = 1e9 * gpu.memory_gb, trainer_of(config, parameters)
    asked, keeps_kv = rollout.gpu_memory_utilization, not rollout.free_cache_engine
    certain = trainer.engine_share(memory_bytes, keeps_kv=keeps_kv, with_activations=False)
    likely = trainer.engine_share(memory_bytes, keeps_kv=keeps_kv)
    if asked <= likely:
        return ""
    is_certain = here is not None and asked > certain
    limit = certain if is_certain else likely
    stays = trainer.state_bytes if keeps_kv else trainer.resident_bytes
    remedy = f"use more GPUs, or actor.strategy=fsdp2 with {_FSDP}offload_policy=True"
    if limit > 0:
        offload = (
            "free_cache_engine=True" if keeps_kv else f"{_FSDP}param_offload=True and {_FSDP}optimizer_offload=True"
        )
        remedy = f"set at most {limit - 0.005:.2f}, or {offload}, or use more GPUs"
    error = ConfigError(
        _ROLLOUT + "gpu_memory_utilization",
        asked,
        f"engines and trainer do not fit on {gpu.name} of {gpu.memory_gb:.0f} GB: weights, gradients and optimizer "
        f"take {trainer.state_bytes / 1e9:.1f} GB, a micro batch about {trainer.activation_bytes / 1e9:.1f}; while "
        f"engines generate, {stays / 1e9:.1f} GB stay; {remedy}",
    )
    if is_certain:
        raise error
    return str(error)


def gpu_here() -> Gpu | None:
    """One of this machine's."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Gpu(name=found.name, memory_gb=found.total_memory / 1e9)


def trainer_of(config: DictConfig, parameters: int) -> TrainerMemory:
    """The actor alone: a critic comes on top."""
    actor, options = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    fsdp = actor.fsdp_config
    longest_tok = config.data.max_prompt_length + config.data.max_response_length
    model = load_by_verl(config).hf_config.get_text_config()
    return TrainerMemory(
        parameters=parameters,
        shards=fsdp.fsdp_size if fsdp.fsdp_size > 0 else training_gpus(config),
        layers=model.num_hidden_layers,
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        micro_batch_tok=(
            actor.ppo_max_token_len_per_gpu
            if actor.use_dynamic_bsz
            else (actor.ppo_micro_batch_size_per_gpu or 1) * longest_tok
        ),
        value_bytes=2 if fsdp.model_dtype in _HALF else 4,
        is_adapter=bool(options.lora_rank),
        checkpoints_activations=options.enable_gradient_checkpointing,
        has_logits=not options.use_fused_kernels,
        offloads_weights=fsdp.param_offload,
        offloads_optimizer=fsdp.optimizer_offload,
        stays_on_host=bool(fsdp.offload_policy) and actor.strategy == "fsdp2",
    )
