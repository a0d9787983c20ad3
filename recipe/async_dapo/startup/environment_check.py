"""What the environment says of Ray and of loggers: it would be found when a minute has been spent on the start."""

import netrc
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import torch
from omegaconf import DictConfig, OmegaConf

from ..config.values import ConfigError, check_each
from .verl_options import listed

_ADDRESS, _VARIABLE = "ray_kwargs.ray_init.address", "RAY_ADDRESS"
_KEY, _TOKEN = "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"
_HOST = "https://api.wandb.ai"


def check_environment(config: DictConfig) -> str:
    """
    Returns:
        What another machine has to have, in words; empty if nothing is missing here.

    Raises:
        ConfigError: naming variable or option, what is wrong, and the remedy.
    """
    lacks: list[str] = []
    check_each([partial(_check_ray, config), lambda: lacks.append(_check_wandb(config))])
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


def _check_wandb(config: DictConfig) -> str:
    """Where the run starts Ray itself, its processes have this environment and this home. A machine without an
    accelerator is not the one that trains on some.
    """
    variables = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    environment = {**os.environ, **{str(name): str(value) for name, value in variables.items()}}
    is_online = environment.get("WANDB_MODE", "online") in ("online", "shared")
    joins = _address(config)[1] not in ("", "local")
    if "wandb" not in listed(config.trainer.logger) or not is_online or joins or _has_key(environment):
        return ""
    lacks = (
        "wandb finds no key on this machine, and would end the run once engines are up; run `wandb login`, set "
        f"{_KEY}, or set WANDB_MODE=offline, or leave wandb out"
    )
    if config.trainer.device == "cpu" or torch.cuda.is_available():
        raise ConfigError("trainer.logger", config.trainer.logger, lacks)
    return f"trainer.logger={config.trainer.logger}: {lacks}"


def _has_key(environment: dict[str, str]) -> bool:
    """A key, or a file of settings, which may hold one or another mode."""
    settings = (Path("wandb/settings"), Path(environment.get("WANDB_CONFIG_DIR", "~/.config/wandb")) / "settings")
    if environment.get(_KEY) or environment.get(_TOKEN) or any(file.expanduser().exists() for file in settings):
        return True
    host = urlsplit(environment.get("WANDB_BASE_URL", _HOST)).hostname or ""
    for name in (environment.get("NETRC"), "~/.netrc", "~/_netrc"):
        with suppress(OSError, netrc.NetrcParseError):
            if name and netrc.netrc(str(Path(name).expanduser())).authenticators(host):
                return True
    return False
