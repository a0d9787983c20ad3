"""How a run was started: its overrides reach the process that writes the record through the environment. Neither the
record nor a command that is printed holds the value of a secret.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAUNCH_VARIABLE = "ASYNC_DAPO_LAUNCH"
# Names of options that may hold keys of services: the variables of the processes, and those that say so.
_SECRET = re.compile(r"(env_vars|api_?key|secret|password|hf_token|access_token|auth_token)[\w.-]*[\"']?\s*[=:]", re.I)


def note_launch(overrides: Sequence[str]) -> None:
    """For a driver, before it starts Ray: its Hydra overrides, behind the flags that name a yaml of the user's, and the
    folder that their relative paths begin at; where Python finds the recipe, if that is elsewhere.
    """
    kept = [override for override in overrides if not _SECRET.search(override)]
    noted: dict[str, Any] = {"overrides": kept, "folder": str(Path.cwd())}
    if sys.flags.safe_path:  # the reference scripts: Python does not look for the recipe in that folder
        noted["python_path"] = os.environ.get("PYTHONPATH", "")
    os.environ[LAUNCH_VARIABLE] = json.dumps(noted)


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line to be printed: `<hidden>` stands for a secret, and start-up asks for a value in its place."""
    return [f"{one.partition('=')[0]}=<hidden>" if _SECRET.search(one) else one for one in arguments]
