"""Ray workers that are forks of a server, see `quickstart/fork_server.py`: this folder is on the path of every driver
that has such workers, whatever the recipe is called there.
"""

import os
import shlex
from importlib import import_module
from typing import Any

# Fields of a runtime environment that name another Python, or what is put in front of it.
_OTHER_PYTHON = {"py_executable", "pip", "uv", "conda", "container", "image_uri", "_nsight", "_rocprof_sys"}


def start_by_executable(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Ray calls what its variable `RAY_RUNTIME_ENV_HOOK` names, in a driver, and starts workers as the result says. It
    takes one name: the user's own hook is called from here. Workers that the user gives another Python are no forks.
    """
    if own := os.environ.get("RAY_RUNTIME_ENV_HOOK_OF_USER"):
        module, _, name = own.rpartition(".")
        runtime_env = getattr(import_module(module), name)(runtime_env)
    found = {**(runtime_env or {})}
    if not any(found.get(field) for field in _OTHER_PYTHON):
        found["py_executable"] = shlex.quote(os.environ["STARTS_RAY_WORKERS"])
    return found
