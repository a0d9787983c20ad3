"""The run's model, as verl loads it before a cluster has started."""

from typing import Any

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig

from ..config.values import refused

RUN_ON = {"linear_attention", "conv", "mamba", "recurrent", "hybrid"}  # layers that take a row for one sequence


def load_by_verl(config: DictConfig, of: str = "actor_rollout_ref") -> Any:
    """The `HFModelConfig` that verl makes once a cluster has started: the model's configuration, and its tokenizer.

    Args:
        of: `critic` for that of the critic.

    Raises:
        ConfigError: where verl would fail.
    """
    try:  # nothing is copied to /dev/shm yet
        return instantiate(config[of].model, use_shm=False, _convert_="partial")
    except HydraException as error:
        why = " ".join(f"{type(error.__cause__).__name__}: {error.__cause__}".split())
        raise refused(config, f"{of}.model.path", f"verl cannot load it: {why}; correct path or options") from error


def layers_of(model: Any) -> frozenset[str]:
    """The types of its layers, as vLLM reads them; empty where its configuration does not tell them.

    Args:
        model: verl's `HFModelConfig`.
    """
    text = model.hf_config.get_text_config()
    return frozenset(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
