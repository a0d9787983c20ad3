"""What other nodes need of this one reaches them through Ray's runtime environment.

Shipped: the recipe, the user's own code and option files, and a few environment variables. Not shipped, but made
absolute, so that they mean the same on every node: model, data and output folders.
"""

import hashlib
import importlib
import json
import logging
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

from ..config.values import ConfigError
from .garbage import collect_cycles_rarely
from .interruption import stay_interruptible
from .launch import LAUNCH_VARIABLE
from .logger_variables import logger_variables
from .logs import STARTED_VARIABLE

logger = logging.getLogger(__name__)

RECIPE_DIR = Path(__file__).resolve().parents[1]
_RECIPE = __package__.rpartition(".")[0]  # dotted name

# Python files that verl loads by path, on any node. They become modules of `USER_PACKAGE`.
CODE_OPTIONS = ("reward.custom_reward_function.path", "reward.reward_manager.module.path", "data.custom_cls.path")
# Files that agent loop workers and the data set open.
FILE_OPTIONS = (
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path",
    "actor_rollout_ref.rollout.multi_turn.function_tool_path",
    "data.tool_config_path",
    "data.function_tool_path",
)
# Places that every node reaches, or that only one node uses.
DATA_OPTIONS = ("data.train_files", "data.val_files")
PLACE_OPTIONS = (
    *DATA_OPTIONS,
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.hf_config_path",
    "actor_rollout_ref.model.lora_adapter_path",
    "actor_rollout_ref.rollout.quantization_config_file",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "critic.model.hf_config_path",
    "reward.reward_model.model_path",
)
OUTPUT_OPTIONS = (
    "trainer.default_local_dir",
    "trainer.resume_from_path",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "async_dapo.report_dir",
    "global_profiler.save_path",
)
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

USER_PACKAGE = "async_dapo_user_files"

# A parent package may exist on a node already, with other recipes in it: join with it rather than hide it or be hidden.
_JOINED_PACKAGE = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


@contextmanager
def shipped(config: DictConfig, *beside: Path) -> Iterator[Callable[[Any], "_Unstaging"]]:
    """While it is open, `ray.init` with `ray_kwargs.ray_init` ships what other nodes need. Changes `config` in place.

    Args:
        beside: packages in the recipe's own parent folder that other nodes need, too.

    Returns:
        What makes a task runner's class of an actor class, for verl to make the first actor of.

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
        yield partial(_Unstaging, staging)


class _Unstaging:
    """An actor class whose first actor is made when Ray has started, and has its copy of the staging, which goes."""

    def __init__(self, staging: Path, actor_class: Any) -> None:
        self._staging, self._actor_class = staging, actor_class

    def options(self, **options: Any) -> "_Unstaging":
        return _Unstaging(self._staging, self._actor_class.options(**options))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        shutil.rmtree(self._staging)
        stay_interruptible()
        _tell_of_missing_cpus()
        return self._actor_class.remote(*args, **kwargs)


def _tell_of_missing_cpus() -> None:
    """Nothing starts on a head that offers none; Ray waits for other nodes in silence."""
    import ray

    if not ray.cluster_resources().get("CPU"):
        logger.warning(
            "no node of this Ray cluster offers a CPU: the run waits until one joins that does; start it with "
            "`ray start --address=... --num-cpus=...`"
        )


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
        beside += (RECIPE_DIR.parent / recorder.removeprefix(f"{parent}.").split(".")[0],)
    return dict.fromkeys((RECIPE_DIR, *beside))


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
