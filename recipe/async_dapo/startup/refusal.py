"""How a check refuses an option: by its key, with the value that the configuration has for it."""

from omegaconf import DictConfig, OmegaConf

from ..option_values import ConfigError


def refused(config: DictConfig, key: str, remedy: str) -> ConfigError:
    """The error for an option, to be raised.

    Args:
        key: of the option, from the top.
        remedy: what is wrong with its value, and what to set.
    """
    return ConfigError(key, OmegaConf.select(config, key), remedy)
