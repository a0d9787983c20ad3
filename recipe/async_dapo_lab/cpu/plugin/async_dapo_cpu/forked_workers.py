"""Ray workers that are forks of a server, see `quickstart/fork_server.py`: this folder is on the path of every driver
that has such workers, whatever the recipe is called there.
"""

import os
import shlex
from typing import Any


def start_by_executable(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Ray calls what its variable `RAY_RUNTIME_ENV_HOOK` names, in a driver, and starts workers as the result says."""
    return {**(runtime_env or {}), "py_executable": shlex.quote(os.environ["STARTS_RAY_WORKERS"])}
