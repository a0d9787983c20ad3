"""What other nodes need of the driver's reaches them through Ray's runtime environment.

Shipped: the recipe, the user's own code and option files, and a few environment variables. Not shipped: model, data and
output folders.
"""

import hashlib
import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ...config.values import ConfigError
from ...config.verl_keys import CODE_OPTIONS, FILE_OPTIONS
from ...runtime.launch import LAUNCH_VARIABLE
from ...runtime.logs import STARTED_VARIABLE
from ...runtime.shipping import Shipped, Shipping
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
USER_PACKAGE = "async_dapo_user_files"  # which the files of `CODE_OPTIONS` become modules of

# A parent package may exist on a node already, with other recipes in it: join with it rather than hide it or be hidden.
_JOINED_PACKAGE = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


@contextmanager
def staged(config: DictConfig, *beside: Path) -> Iterator[Shipped]:
    """As `Shipping.staged`.

    Raises:
        ConfigError: for a file that does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="async_dapo_staging_", ignore_cleanup_errors=True) as folder:
        staging = Path(folder)
        modules = [_stage_packages(staging, *_packages(config, *beside))]
        _ship_user_files(config, staging / USER_PACKAGE)
        if (staging / USER_PACKAGE).exists():
            modules.append(staging / USER_PACKAGE)
        variables = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        variables |= logger_variables(os.environ)
        yield Shipped([*map(str, modules)], variables, partial(shutil.rmtree, staging))


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


SHIPPING = Shipping(staged=staged, localise=localise)
