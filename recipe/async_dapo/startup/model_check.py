"""Where the model is, and whether its context holds the longest response that the options allow."""

import logging
from functools import cache
from pathlib import Path
from threading import Thread

from omegaconf import DictConfig, OmegaConf

from ..config import ConfigError

logger = logging.getLogger(__name__)

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


def loadable(model: DictConfig, key: str) -> str:
    """The same, for files that are loaded now.

    Raises:
        ConfigError: as `local_folder`, and for a name of the hub whose files are not here and cannot be fetched.
    """
    folder = local_folder(model, key)
    if not Path(folder).exists():
        _check_hub(folder, key)
    return folder


def _check_hub(name: str, key: str) -> None:
    """Ask whether the hub is there: its own client would try for half a minute, file by file."""
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
    """Why the hub cannot be reached; empty where it can. One attempt a process, on a thread that is given up: a name
    server that does not answer is waited for much longer than a client's timeout allows."""
    import httpx
    from huggingface_hub.utils import get_session

    problems: list[str] = []

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=_HUB_LIMIT_S)
        except httpx.TransportError as error:
            problems.append(str(error))

    thread = Thread(target=ask, name="ask-hub", daemon=True)
    thread.start()
    thread.join(_HUB_LIMIT_S)
    return f"no answer in {_HUB_LIMIT_S:g} s" if thread.is_alive() else "".join(problems)


def check_context(config: DictConfig) -> None:
    """Engines would cut responses short, without a word, where the model has no room for them.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest_tok = data.max_prompt_length + data.max_response_length
    context_tok = _context_tok(config.actor_rollout_ref.model)
    if context_tok is not None and context_tok < max(longest_tok, rollout.max_model_len or 0):
        raise ConfigError(
            "actor_rollout_ref.rollout.max_model_len",
            rollout.max_model_len,
            f"the model has {context_tok} positions (max_position_embeddings), and data.max_prompt_length + "
            f"data.max_response_length = {longest_tok}; lower these to fit, or take a model with a longer context",
        )


def _context_tok(model: DictConfig) -> int | None:
    """Positions of the model as verl reads them [tokens]; None for a model that only verl or vLLM knows."""
    from transformers import AutoConfig
    from verl.utils.model import update_model_config
    from verl.workers.rollout.utils import get_max_position_embeddings

    key = "hf_config_path" if model.get("hf_config_path") else "path"
    folder = loadable(model, key)
    if Path(folder).is_dir() and not Path(folder, "config.json").is_file():
        raise ConfigError(_MODEL + key, model[key], "has no config.json; correct the path")
    try:
        hf_config = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
        override = OmegaConf.to_container(model.override_config, resolve=True)
        assert isinstance(override, dict)
        update_model_config(hf_config, override.get("model_config", override))
        return get_max_position_embeddings(hf_config)
    except OSError as error:
        raise ConfigError(_MODEL + key, model[key], f"its config.json cannot be read: {error}; correct it") from error
    except ValueError as error:
        logger.info("the model's context is not checked: %s", error)
        return None
