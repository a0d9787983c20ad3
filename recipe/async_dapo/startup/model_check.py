"""Where the model is, whether verl can load it, and whether its context holds the longest response that the options
allow.
"""

from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig

from ..option_values import ConfigError, refused
from .agent_loop_check import shipped_modules
from .hardware import ModelSize, find_config, size_of

_MODEL = "actor_rollout_ref.model."
_HUB_FILES = ("config.json", "tokenizer_config.json")
_HUB_LIMIT_S = 10.0


def local_folder(model: DictConfig, key: str) -> str:
    """The folder, or the hub's name, of what a key of the `model` node names; fetched first if it is remote.

    Raises:
        ConfigError: when it is a path that does not exist.
    """
    from verl.utils.fs import copy_to_local

    name: str = model[key]
    if name.startswith(("/", "~", ".")) and not Path(name).exists():
        raise ConfigError(_MODEL + key, name, "no such folder; correct the path (verl expands no ~)")
    return copy_to_local(name)


def model_size(model: DictConfig) -> ModelSize | None:
    """Of the model that a `model` node names; None for one whose size is not known, and for one that is missing, which
    `check_context` tells.
    """
    try:
        config, name = find_config(local_folder(model, "path"))
        return size_of(config, name=name)
    except (ConfigError, FileNotFoundError):
        return None


def load_by_verl(config: DictConfig) -> Any:
    """The `HFModelConfig` that verl makes once a cluster has started: the model's configuration, and its tokenizer.

    Raises:
        ConfigError: where verl would fail, and for a name of the hub whose files are not here and cannot be fetched.
    """
    model = config.actor_rollout_ref.model
    for key in ("path", "hf_config_path", "tokenizer_path"):
        if model.get(key) and not Path(folder := local_folder(model, key)).exists():
            _check_hub(folder, key)
    try:
        with shipped_modules(config):
            return instantiate(model, use_shm=False, _convert_="partial")  # nothing is copied to /dev/shm yet
    except HydraException as error:
        why = " ".join(f"{type(error.__cause__).__name__}: {error.__cause__}".split())
        raise refused(config, _MODEL + "path", f"verl cannot load it: {why}; correct path or options") from error


def _check_hub(name: str, key: str) -> None:
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE or any(try_to_load_from_cache(name, file) for file in _HUB_FILES):
        return
    if problem := hub_problem(constants.ENDPOINT):
        raise ConfigError(
            _MODEL + key,
            name,
            f"no folder here, not in the cache of the Hugging Face hub, and {constants.ENDPOINT} cannot be reached "
            f"({problem}); correct the path, or download the model first",
        )


@cache
def hub_problem(endpoint: str) -> str:
    """Why the hub cannot be reached; empty where it can. Its own client tries for most of a minute, file by file."""
    import httpx
    from huggingface_hub.utils import get_session

    try:
        get_session().head(endpoint, timeout=_HUB_LIMIT_S)
    except httpx.TransportError as error:
        return str(error)
    return ""


def check_context(config: DictConfig) -> None:
    """Engines would cut responses short, without a word, where they or the model have no room for them.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    from verl.workers.rollout.utils import get_max_position_embeddings

    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest_tok, key = data.max_prompt_length + data.max_response_length, "actor_rollout_ref.rollout.max_model_len"
    if rollout.max_model_len is not None and rollout.max_model_len < longest_tok:
        raise refused(
            config,
            key,
            f"must be >= {longest_tok} = data.max_prompt_length + data.max_response_length: responses would be cut "
            "short; null = what the model allows",
        )
    model = load_by_verl(config)
    try:
        context_tok = get_max_position_embeddings(model.hf_config)
    except ValueError as error:
        raise refused(config, _MODEL + "path", f"verl says: {error}; take another model") from error
    if context_tok < max(longest_tok, rollout.max_model_len or 0):
        raise refused(
            config,
            key,
            f"the model has {context_tok} positions (max_position_embeddings), and data.max_prompt_length + "
            f"data.max_response_length = {longest_tok}; lower these to fit, or take a model with a longer context",
        )
