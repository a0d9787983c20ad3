"""What the processes of a run are started with, through Ray's runtime environment: places that mean the same in every
folder, two settings of speed, and what an extension ships to other nodes (`Declared.shipping`).
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from ..config.extensions import of_copy
from ..config.values import ConfigError
from ..config.verl_keys import OUTPUT_OPTIONS, PATH_OPTIONS
from .garbage import collect_cycles_rarely

# Samples go to the reward workers one by one: verl's other way of packing one takes five times as long.
DEFAULT_ENVIRONMENT = {"VERL_DATAPROTO_SERIALIZATION_METHOD": "numpy"}

# What `ray job submit` and KubeRay's RayJob tell a driver of its job. Without the second variable Ray rejects a
# runtime_env that repeats a key of the job's, even with the same value.
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
OVERRIDE_VARIABLE = "RAY_OVERRIDE_JOB_RUNTIME_ENV"

_RECIPE = __package__.rpartition(".")[0]  # dotted name
_ROOT = Path(__file__).absolute().parents[_RECIPE.count(".") + 2]  # where Python finds it


class Shipped(NamedTuple):
    """What a run sends to other nodes.

    Attributes:
        modules: folders of packages.
        variables: of the environment. No secrets: verl prints them.
        ray_has_it: is called when Ray has a copy of its own.
    """

    modules: Sequence[str]
    variables: Mapping[str, str]
    ray_has_it: Callable[[], None] = lambda: None


class Shipping(NamedTuple):
    """How code, files and variables reach other nodes.

    Attributes:
        staged: `staged(config, *beside)`: while it is open, its `Shipped` exists; changes `config` in place. `beside`:
            packages in the recipe's own parent folder that other nodes need, too.
        localise: points options to what has been shipped to this node, in place.
    """

    staged: Callable[..., AbstractContextManager[Shipped]]
    localise: Callable[[DictConfig], None]


def shipping() -> Shipping:
    """That of this copy. Without one nothing is sent: each node needs the code at the same place, and the processes of
    a cluster that is joined are told that place.
    """
    return of_copy("shipping") or Shipping(
        staged=lambda config, *beside: nullcontext(Shipped([], {"PYTHONPATH": _search_path()})),
        localise=lambda config: None,
    )


def _search_path() -> str:
    """What comes before each node's own, which Ray puts in the place of the variable's name. It is written without
    braces: OmegaConf would take those for one of its own.
    """
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH"), "$PYTHONPATH"]))


@contextmanager
def staged(config: DictConfig, *beside: Path) -> Iterator[Callable[[], None]]:
    """While it is open, `ray.init` with `ray_kwargs.ray_init` gives processes what they need. It changes `config`.

    Args:
        beside: packages in the recipe's own parent folder that other nodes need, too.

    Returns:
        What is called when Ray has started.

    Raises:
        ConfigError: for a file to ship that does not exist, and for what the Ray job sets as well.
    """
    _make_absolute(config)
    with shipping().staged(config, *beside) as shipped:
        _add_to_runtime_env(config, shipped)
        yield shipped.ray_has_it


def _make_absolute(config: DictConfig) -> None:
    for key in PATH_OPTIONS:
        value = OmegaConf.select(config, key)
        if isinstance(value, ListConfig):
            OmegaConf.update(config, key, [_absolute(item) for item in value])
        elif value is not None:
            OmegaConf.update(config, key, _absolute(value, is_made=key in OUTPUT_OPTIONS))


def _absolute(value: str, *, is_made: bool = False) -> str:
    """A name that is no file here, such as one of the Hugging Face hub, stays as it is, unless the run makes it."""
    path = Path(value).expanduser()
    return str(path.absolute()) if path.exists() or (is_made and "://" not in value) else value


def _add_to_runtime_env(config: DictConfig, shipped: Shipped) -> None:
    """To that of the options. Where this process is the driver of a Ray job, that job's modules stay, and its variables
    and its setup hook go before our defaults."""
    runtime_env = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env, resolve=True) or {}
    assert isinstance(runtime_env, dict)
    job = _runtime_env_of_job()
    for field in map(str, runtime_env.keys() & job.keys() - {"py_modules", "env_vars"}):
        key = f"ray_kwargs.ray_init.runtime_env.{field}"
        raise ConfigError(key, runtime_env[field], f"the Ray job sets {field}, too; leave it out here, or there")
    modules = [*(job.get("py_modules") or []), *(runtime_env.get("py_modules") or []), *shipped.modules]
    if modules:
        runtime_env["py_modules"] = modules
    of_job = job.get("env_vars") or {}
    defaults = {name: value for name, value in DEFAULT_ENVIRONMENT.items() if name not in of_job}
    runtime_env["env_vars"] = {**defaults, **shipped.variables, **(runtime_env.get("env_vars") or {})}
    if "worker_process_setup_hook" not in job:
        hook = collect_cycles_rarely
        runtime_env.setdefault("worker_process_setup_hook", f"{hook.__module__}.{hook.__name__}")
    if job:
        os.environ[OVERRIDE_VARIABLE] = "1"
    with open_dict(config):
        config.ray_kwargs.ray_init.runtime_env = runtime_env


def _runtime_env_of_job() -> dict[str, Any]:
    """With its files uploaded. Empty for a driver that was started by hand."""
    runtime_env = json.loads(os.environ.get(JOB_VARIABLE, "{}")).get("runtime_env") or {}
    assert isinstance(runtime_env, dict)
    return runtime_env
