"""Options that checkpoints have to do with: how many are kept, and what a resumed run goes on with whatever it says."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from .derived import training_gpus

# Of torch's optimizers, beside their class and the betas of those that have them.
_RESTORED = ("lr", "weight_decay", "override_optimizer_config")
# Of adapters: how they are scaled, and what has some, and so the names of tensors. Megatron has options of its own.
_ADAPTED = ("lora_alpha", "target_modules", "target_parameters", "exclude_modules")
_ADAPTED_BY_MEGATRON = tuple(f"lora.{name}" for name in ("type", "alpha", "target_modules", "exclude_modules"))


def checkpoints_to_keep(config: DictConfig, model: str = "actor") -> int | None:
    """None = all: so verl understands null, and whatever is not positive."""
    keep: int | None = config.trainer[f"max_{model}_ckpt_to_keep"]
    return keep if keep and keep > 0 else None


def lasting_options(config: DictConfig) -> dict[str, Any]:
    """What a checkpoint's run goes on with, whatever its options say at a resume, or cannot go on without: the training
    engine that wrote it, and how that names and cuts its tensors; n of the groups that it holds; how adapters are
    scaled; what torch restores of an optimizer; the order of the data. Megatron takes a new learning rate and weight
    decay.
    """
    models = ("actor_rollout_ref.actor", "critic")
    is_megatron = OmegaConf.select(config, "model_engine") == "megatron"
    keys = ["model_engine", *(f"{model}.strategy" for model in models), "data.shuffle"]
    keys += ["actor_rollout_ref.rollout.n", *_of_adapters(config, is_megatron=is_megatron)]
    keys += [f"{model}.optim.{name}" for model in models for name in ("optimizer", "optimizer_impl")]
    keys += [f"{model}.optim.{name}" for model in models for name in (() if is_megatron else _RESTORED)]
    for model in models:
        optimizer = str(OmegaConf.select(config, f"{model}.optim.optimizer"))
        if "adam" in optimizer.lower():  # as verl asks: others have none
            keys.append(f"{model}.optim.betas")
    if config.data.shuffle:
        keys.append("data.seed")
    for model, node in zip(models, ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"), strict=True):
        if OmegaConf.select(config, f"{model}.strategy") == "fsdp":  # FSDP1 has no names in an optimizer's state
            keys += [f"{node}.use_orig_params", f"{node}.wrap_policy"]
    plain = {key: OmegaConf.select(config, key) for key in keys} | _groups(config)
    return {key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value for key, value in plain.items()}


def _of_adapters(config: DictConfig, *, is_megatron: bool) -> list[str]:
    """Options of adapters, where there are some; else their rank alone."""
    rank, further = ("lora.rank", _ADAPTED_BY_MEGATRON) if is_megatron else ("lora_rank", _ADAPTED)
    keys: list[str] = []
    for model in ("actor_rollout_ref.model", "critic.model"):
        keys.append(f"{model}.{rank}")
        if OmegaConf.select(config, keys[-1]):
            keys += [f"{model}.{name}" for name in further]
    return keys


def _groups(config: DictConfig) -> dict[str, Any]:
    """Ranks over which FSDP cuts a model's tensors, by the option that says so."""
    keys = ("actor_rollout_ref.actor.fsdp_config.fsdp_size", "critic.fsdp.fsdp_size")
    sizes, ranks = {key: OmegaConf.select(config, key) for key in keys}, training_gpus(config)
    return {key: size if 0 < size < ranks else ranks for key, size in sizes.items() if isinstance(size, int)}
