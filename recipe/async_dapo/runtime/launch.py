"""How a run was started: its overrides reach the process that writes the record through the environment."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAUNCH_VARIABLE = "ASYNC_DAPO_LAUNCH"
_SECRET = "env_vars"  # variables of the processes: they may hold keys of services, and the record holds none


def note_launch(overrides: Sequence[str]) -> None:
    """For a driver, before it starts Ray: its Hydra overrides, behind the flags that name a yaml of the user's, and the
    folder that their relative paths begin at.
    """
    kept = [override for override in overrides if _SECRET not in override]
    os.environ[LAUNCH_VARIABLE] = json.dumps({"overrides": kept, "folder": str(Path.cwd())})


def launched() -> dict[str, Any]:
    """`overrides` and `folder`; empty where they were not noted."""
    noted: dict[str, Any] = json.loads(os.environ.get(LAUNCH_VARIABLE, "{}"))
    return noted
