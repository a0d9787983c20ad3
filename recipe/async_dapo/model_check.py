"""Where the model is, and whether its context holds the longest response that the options allow."""

from pathlib import Path

from omegaconf import DictConfig

from .config import ConfigError

_MODEL = "actor_rollout_ref.model."


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


def check_context(config: DictConfig) -> None:
    """Engines would cut responses short, without a word, where the model has no room for them.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest_tok = data.max_prompt_length + data.max_response_length
    context_tok = _context_tok(config.actor_rollout_ref.model)
    if context_tok < max(longest_tok, rollout.max_model_len or 0):
        raise ConfigError(
            "actor_rollout_ref.rollout.max_model_len",
            rollout.max_model_len,
            f"the model has {context_tok} positions (max_position_embeddings), and data.max_prompt_length + "
            f"data.max_response_length = {longest_tok}; lower these to fit, or take a model with a longer context",
        )


def _context_tok(model: DictConfig) -> int:
    """Positions of the model as verl reads them [tokens]."""
    from transformers import AutoConfig
    from verl.workers.rollout.utils import get_max_position_embeddings

    override = model.override_config.get("model_config", model.override_config)
    if "max_position_embeddings" in override:
        return override["max_position_embeddings"]
    key = "hf_config_path" if model.get("hf_config_path") else "path"
    folder = local_folder(model, key)
    try:
        return get_max_position_embeddings(
            AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(_MODEL + key, model[key], f"its config.json cannot be used: {error}; correct it") from error
