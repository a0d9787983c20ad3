"""What a process needs in its environment to run verl and vLLM without a GPU."""

import os
from collections.abc import Mapping
from pathlib import Path

from ..own_ray import OWN_RAY_ENVIRONMENT

PLUGIN_PATH = Path(__file__).parents[1] / "cpu" / "plugin"
# What a Ray of a run's own does not do.
SMALL_RAY = {
    "RAY_prestart_worker_first_driver": "0",  # none of a run's processes fits those that Ray starts ahead
    "RAY_enable_metrics_collection": "0",  # they are for a dashboard
}


def cpu_environment(base: Mapping[str, str], *, code_path: Path | None = None) -> dict[str, str]:
    """A copy of `base` that activates the CPU plugin, here and in every process started from it.

    Args:
        code_path: also put on `PYTHONPATH`, so that workers started elsewhere can import the recipe.
    """
    paths = [str(PLUGIN_PATH)]
    if code_path is not None:
        paths.append(str(code_path))
    paths += [path for path in base.get("PYTHONPATH", "").split(os.pathsep) if path and path not in paths]
    return {**base, "VERL_PLATFORM": "cpu", "PYTHONPATH": os.pathsep.join(paths)}


def run_environment(base: Mapping[str, str], *, code_path: Path, output: Path, ray_folder: Path) -> dict[str, str]:
    """That of a training run with a cluster of its own, whose metrics go to `output`. Nothing is downloaded.

    Args:
        ray_folder: of this run only.
    """
    environment = cpu_environment(base, code_path=code_path)
    environment.pop("RAY_ADDRESS", None)
    return (
        environment
        | OWN_RAY_ENVIRONMENT
        | SMALL_RAY
        | {
            "DIST_INIT_METHOD": f"file://{ray_folder / 'ranks'}",  # verl's; torch's stores listen on all addresses
            "HF_HUB_OFFLINE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
            "VERL_FILE_LOGGER_PATH": str(output / "metrics.jsonl"),
            "TENSORBOARD_DIR": str(output / "tensorboard"),
        }
    )
