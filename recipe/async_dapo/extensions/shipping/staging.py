"""What other nodes need of the driver's reaches them through Ray's runtime environment.

Shipped: the recipe, the user's own code and option files, and a few environment variables. Not shipped, but made
absolute, so that they mean the same on every node: model, data and output folders.
"""

import hashlib
import importlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from ...config.values import ConfigError
from ...config.verl_keys import CODE_OPTIONS, FILE_OPTIONS, OUTPUT_OPTIONS, PLACE_OPTIONS
from ...runtime.garbage import collect_cycles_rarely
from ...runtime.launch import LAUNCH_VARIABLE
from ...runtime.logs import STARTED_VARIABLE
from ...runtime.shipping import Shipping
from .logger_variables import logger_variables

FOLDER = Path(__file__).resolve().parents[2]
_RECIPE = __package__.rpartition(".extensions.")[0]  # dotted name

# No secrets: verl prints the runtime environment.
ENVIRONMENT = (
    "VERL_PLATFORM",
    "VERL_USE_EXTERNAL_MODULES",  # they register what options name: losses, estimators, reward managers
    "VERL_USE_EXTERNAL_PLUGINS",
    "VERL_USE_MODELSCOPE",
    "VERL_LOGGING_LEVEL",
    STARTED_VARIABLE,
    LAUNCH_VARIABLE,
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_LOGGING_LEVEL",
    "VLLM_DISABLE_COMPILE_CACHE",
)
# Samples go to the reward workers one by one: verl's other way of packing one takes five times as long.
DEFAULT_ENVIRONMENT = {"VERL_DATAPROTO_SERIALIZATION_METHOD": "numpy"}

# What `ray job submit` and KubeRay's RayJob tell a driver of its job. Without the second variable Ray rejects a
# runtime_env that repeats a key of the job's, even with the same value.
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
OVERRIDE_VARIABLE = "RAY_OVERRIDE_JOB_RUNTIME_ENV"

USER_PACKAGE = "async_dapo_user_files"  # which the files of `CODE_OPTIONS` become modules of

# A parent package may exist on a node already, with other recipes in it: join with it rather than hide it or be hidden.
_JOINED_PACKAGE = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


@contextmanager
def staged(config: DictConfig, *beside: Path) -> Iterator[Callable[[], None]]:
    """While it is open, `ray.init` with `ray_kwargs.ray_init` ships what other nodes need. Changes `config` in place.

    Args:
        beside: packages in the recipe's own parent folder that other nodes need, too.

    Returns:
        What removes the staging, which Ray copies as it starts.

    Raises:
        ConfigError: for a file that does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="async_dapo_staging_", ignore_cleanup_errors=True) as folder:
        staging = Path(folder)
        _make_absolute(config)
        modules = [_stage_packages(staging, *_packages(config, *beside))]
        _ship_user_files(config, staging / USER_PACKAGE)
        if (staging / USER_PACKAGE).exists():
            modules.append(staging / USER_PACKAGE)
        _add_to_runtime_env(config, modules)
        yield partial(shutil.rmtree, staging)


def localise(config: DictConfig) -> None:
    """Point the options of shipped files to this node's copies, in place. For the processes that open them."""
    for key in FILE_OPTIONS:
        value = OmegaConf.select(config, key)
        if value is not None and Path(value).parent.name == USER_PACKAGE:
            folder = importlib.import_module(USER_PACKAGE).__path__[0]
            OmegaConf.update(config, key, str(Path(folder) / Path(value).name))


def _stage_packages(staging: Path, *folders: Path) -> Path:
    """Copy sibling packages, alone, under their dotted names. Returns the top folder of those names.

    Raises:
        ValueError: several packages without a parent package have no top folder of their own.
    """
    *parents, name = _RECIPE.split(".")
    if not parents and len(folders) > 1:
        raise ValueError(f"{name} and the packages beside it need a parent package")
    for folder in folders:
        shutil.copytree(
            folder, staging.joinpath(*parents, folder.name), ignore=shutil.ignore_patterns("__pycache__", "*.sh")
        )
    for depth in range(1, len(parents) + 1):
        staging.joinpath(*parents[:depth], "__init__.py").write_text(_JOINED_PACKAGE)
    return staging / (parents[0] if parents else name)


def _packages(config: DictConfig, *beside: Path) -> Iterable[Path]:
    """The recipe and packages beside it, that of the recorder among them."""
    parent = _RECIPE.rpartition(".")[0]
    recorder = config.async_dapo.recorder or ""
    if parent and recorder.startswith(f"{parent}."):
        beside += (FOLDER.parent / recorder.removeprefix(f"{parent}.").split(".")[0],)
    return dict.fromkeys((FOLDER, *beside))


def _ship_user_files(config: DictConfig, folder: Path) -> None:
    for key in CODE_OPTIONS:
        value = OmegaConf.select(config, key)
        if value is not None and not value.startswith("pkg://"):
            name = _copy_file(key, value, folder).removesuffix(".py")
            OmegaConf.update(config, key, f"pkg://{USER_PACKAGE}.{name}")
    for key in FILE_OPTIONS:
        value = OmegaConf.select(config, key)
        if value is not None and Path(value).parent.name != USER_PACKAGE:
            OmegaConf.update(config, key, f"{USER_PACKAGE}/{_copy_file(key, value, folder)}")


def _copy_file(key: str, value: str, folder: Path) -> str:
    source = Path(value.removeprefix("file://")).expanduser()
    if not source.is_file():
        raise ConfigError(key, value, "no such file; correct the path")
    content = source.read_bytes()
    stem = re.sub(r"\W", "_", source.stem)
    name = f"{stem}_{hashlib.sha256(content).hexdigest()[:8]}{source.suffix}"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / name).write_bytes(content)
    return name


def _make_absolute(config: DictConfig) -> None:
    for key in PLACE_OPTIONS:
        value = OmegaConf.select(config, key)
        if isinstance(value, ListConfig):
            OmegaConf.update(config, key, [_absolute(item) for item in value])
        elif value is not None:
            OmegaConf.update(config, key, _absolute(value))
    for key in OUTPUT_OPTIONS:
        value = OmegaConf.select(config, key)
        if value is not None and "://" not in value:
            OmegaConf.update(config, key, str(Path(value).expanduser().absolute()))


def _absolute(value: str) -> str:
    """A name that is no file here, such as one of the Hugging Face hub, stays as it is."""
    path = Path(value).expanduser()
    return str(path.absolute()) if path.exists() else value


def _add_to_runtime_env(config: DictConfig, modules: list[Path]) -> None:
    """To that of the options. Where this process is the driver of a Ray job, that job's modules stay, and its variables
    and its setup hook go before our defaults."""
    runtime_env = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env, resolve=True) or {}
    assert isinstance(runtime_env, dict)
    job = _runtime_env_of_job()
    for field in map(str, runtime_env.keys() & job.keys() - {"py_modules", "env_vars"}):
        key = f"ray_kwargs.ray_init.runtime_env.{field}"
        raise ConfigError(key, runtime_env[field], f"the Ray job sets {field}, too; leave it out here, or there")
    runtime_env["py_modules"] = [
        *(job.get("py_modules") or []),
        *(runtime_env.get("py_modules") or []),
        *map(str, modules),
    ]
    of_job = job.get("env_vars") or {}
    environment = {name: value for name, value in DEFAULT_ENVIRONMENT.items() if name not in of_job}
    environment |= {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environment |= logger_variables(os.environ)
    runtime_env["env_vars"] = environment | (runtime_env.get("env_vars") or {})
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


SHIPPING = Shipping(staged=staged, localise=localise)
