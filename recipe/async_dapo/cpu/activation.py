"""What a process needs in its environment to run verl and vLLM without a GPU."""

import os
from collections.abc import Mapping
from pathlib import Path

PLUGIN_PATH = Path(__file__).resolve().parent / "plugin"


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
