"""Which models are trained with pictures, and which prompts can be shown to them."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig

from ...config.values import refused
from ...core.trajectory import AGENT_COLUMN

# Classes whose pictures training has been tried with; all use Qwen's processors.
MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
_NEED_PICTURES = MODELS[:2]
_PACKAGES = ("qwen-vl-utils", "torchvision")


def why_none(kind: str) -> str:
    """Why a model of this type can be shown no pictures; empty if it can."""
    if kind not in MODELS:
        return f"a {kind} cannot be shown pictures; take one of {', '.join(MODELS)}, or leave them out"
    if missing := [name for name in _PACKAGES if find_spec(name.replace("-", "_")) is None]:
        return f"pictures need packages that are not installed; run: pip install {' '.join(missing)}"
    return ""


def check_trains(config: DictConfig, model: Any) -> None:
    """
    Raises:
        ConfigError: if the model takes pictures, and has no processor for them.
    """
    if model.processor is None and (kind := model.hf_config.model_type) in MODELS:
        why = why_none(kind) or "transformers finds no processor that it can load in its folder; copy it there"
        raise refused(config, "actor_rollout_ref.model.path", why)


def check_prompt(
    config: DictConfig,
    key: str,
    messages: Any,
    *,
    has_pictures: bool,
    model: Any,
    loop: str,
    loop_class: Callable[[], Any],
) -> None:
    """
    Args:
        key: of the option to blame.
        messages: with the places of pictures alone.
        loop_class: finds the agent loop's class; None of verl's own.

    Raises:
        ConfigError: if the model, or the agent loop, cannot do with these messages.
    """
    kind = model.hf_config.model_type
    if has_pictures and (why := why_none(kind)):
        raise refused(config, key, f"has prompts with pictures: {why}")
    if kind in _NEED_PICTURES and not has_pictures:
        remedy = f"verl 0.9.1 cannot train {kind} on text alone; leave it out, or take a model of a newer class"
        raise refused(config, key, f"has a prompt without pictures: {messages!r:.80}: {remedy}")
    # A class that shows none says `shows_pictures = False`.
    if has_pictures and not getattr(loop_class(), "shows_pictures", True):
        remedy = f"the agent loop {loop} shows it none; leave them out, or name another loop in column {AGENT_COLUMN}"
        what = f"has a prompt with pictures, {messages[-1]['content']!r:.80}"
        raise refused(config, key, f"{what}: {remedy}")
