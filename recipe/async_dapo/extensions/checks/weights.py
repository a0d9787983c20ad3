"""Weights that a run would miss once engines are up."""

import re
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from safetensors import safe_open

from ...config.values import Drafts, check_each, refused
from ...startup.model import load_by_verl

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json")
_LAYER = re.compile(r"(?:model\.|language_model\.)*layers\.(\d+)\.")


def check_weights(config: DictConfig, model: Any) -> str:
    """
    Args:
        model: verl's `HFModelConfig`.

    Returns:
        What the models lack, in words; empty if they are whole.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    told: list[str] = []
    check_each(
        [
            lambda: told.append(_lacks_weights(config, model, "actor_rollout_ref.model.path")),
            lambda: told.append(_check_critic(config)),
            partial(_check_head, config, model),
        ]
    )
    return "; ".join(filter(None, told))


def _lacks_weights(config: DictConfig, model: Any, key: str) -> str:
    """Each checkpoint of verl's has a folder with the tokenizer and the configuration of the model alone.

    Returns:
        What to say of another folder without weights, which is enough for a rehearsal; empty if there are some.

    Raises:
        ConfigError: for the folder of a checkpoint.
    """
    folder = Path(model.local_path)
    if not folder.is_dir() or any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        return ""
    if not next(folder.parent.glob("model_world_size_*.pt"), None):
        return f"{key}={folder} holds no weights: no more than a rehearsal can start"
    raise refused(
        config,
        key,
        "holds no weights, they are beside it, cut into ranks; merge them, and name that folder: python -m "
        f"verl.model_merger merge --backend fsdp --local_dir {folder.parent} --target_dir MODEL; or name the model "
        "that the run began with, and resume (trainer.resume_mode=resume_path)",
    )


def _check_critic(config: DictConfig) -> str:
    """verl loads it when engines are up."""
    from verl.trainer.ppo.utils import need_critic

    return _lacks_weights(config, load_by_verl(config, "critic"), "critic.model.path") if need_critic(config) else ""


def _check_head(config: DictConfig, model: Any) -> None:
    """A checkpoint may lack the head that its config.json names: transformers loads and saves a model without it. The
    head would be random, or vLLM ends the engines at their start.
    """
    if config.async_dapo.drafts != Drafts.MTP:
        return
    layers, names = model.hf_config.get_text_config().num_hidden_layers, set[str]()
    for file in Path(model.local_path).glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            names.update(weights.keys())
    if names and not any(_is_of_head(name, layers) for name in names):
        raise refused(
            config,
            "async_dapo.drafts",
            f"{model.local_path} holds no weights of a head that predicts several tokens; take a checkpoint that does, "
            "or set suffix, or null",
        )


def _is_of_head(name: str, layers: int) -> bool:
    """Whether a tensor is named after such a head, or is of a layer behind the model's own."""
    layer = _LAYER.match(name)
    return "mtp" in name or (layer is not None and int(layer[1]) >= layers)
