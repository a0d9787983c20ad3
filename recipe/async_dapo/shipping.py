"""The recipe's code reaches every node of the cluster through Ray's runtime environment."""

import os
import shutil
import tempfile
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

RECIPE_DIR = Path(__file__).resolve().parent
CPU_PLUGIN_DIR = RECIPE_DIR / "cpu" / "plugin"


def stage_recipe() -> list[str]:
    """Copy this package, alone, under its dotted name. Returns the folders for Ray's `py_modules`.

    The parent packages are staged as namespace packages, so that whatever else lives beside this recipe on a node
    stays importable.
    """
    package = __package__ or RECIPE_DIR.name
    staging = Path(tempfile.mkdtemp(prefix="async_dapo_"))
    target = staging.joinpath(*package.split("."))
    shutil.copytree(RECIPE_DIR, target, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    modules = [str(staging / package.split(".")[0])]
    if os.environ.get("VERL_PLATFORM") == "cpu":
        modules += [str(path) for path in sorted(CPU_PLUGIN_DIR.iterdir()) if path.is_dir()]
    return modules


def ship_recipe(config: DictConfig) -> None:
    """Add the recipe, and the environment that selects the CPU platform, to `ray_kwargs.ray_init.runtime_env`."""
    runtime_env = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env) or {}
    assert isinstance(runtime_env, dict)
    runtime_env["py_modules"] = [*runtime_env.get("py_modules", []), *stage_recipe()]
    if "VERL_PLATFORM" in os.environ:
        runtime_env.setdefault("env_vars", {})["VERL_PLATFORM"] = os.environ["VERL_PLATFORM"]
    with open_dict(config):
        config.ray_kwargs.ray_init.runtime_env = runtime_env
