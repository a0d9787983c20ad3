"""What the environment says of Ray and of loggers: it would be found when a minute has been spent on the start."""

import os
from functools import partial

import torch
from omegaconf import DictConfig, OmegaConf

from ...config.values import ConfigError, check_each
from ...startup.verl_options import listed
from .logger_keys import lacking

_ADDRESS, _VARIABLE = "ray_kwargs.ray_init.address", "RAY_ADDRESS"


def check_environment(config: DictConfig) -> str:
    """
    Returns:
        What another machine has to have, in words; empty if nothing is missing here.

    Raises:
        ConfigError: naming variable or option, what is wrong, and the remedy.
    """
    lacks: list[str] = []
    check_each([partial(_check_ray, config), lambda: lacks.append(_check_loggers(config))])
    return lacks[0]


def _address(config: DictConfig) -> tuple[str, str]:
    """The option or variable that names the cluster to join, and its value; empty where the run starts one."""
    option = OmegaConf.select(config, _ADDRESS)
    return (_ADDRESS, str(option)) if option else (_VARIABLE, os.environ.get(_VARIABLE, ""))


def _check_ray(config: DictConfig) -> None:
    key, value = _address(config)
    if value.startswith("ray://"):
        remedy = (
            "is Ray Client's, in which no driver is part of the cluster, and verl's is; start the run on a node of the "
            "cluster (RAY_ADDRESS=auto), or with `ray job submit`"
        )
        raise ConfigError(key, value, remedy)


def _check_loggers(config: DictConfig) -> str:
    """Where the run starts Ray itself, its processes have this environment and this home. A machine without an
    accelerator is not the one that trains on some.
    """
    if _address(config)[1] not in ("", "local"):
        return ""
    variables = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    environment = {**os.environ, **{str(name): str(value) for name, value in variables.items()}}
    lacks = "; ".join(lacking(listed(config.trainer.logger), environment))
    if lacks and (config.trainer.device == "cpu" or torch.cuda.is_available()):
        raise ConfigError("trainer.logger", config.trainer.logger, lacks)
    return f"trainer.logger={config.trainer.logger}: {lacks}" if lacks else ""
