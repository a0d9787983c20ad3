"""How a run was started: its overrides reach the process that writes the record through the environment. Neither the
record nor a command that is printed holds the value of a secret.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

LAUNCH_VARIABLE = "ASYNC_DAPO_LAUNCH"
# Names of options that may hold keys of services: the variables of the processes, and those that say so.
_SECRET = re.compile(r"(env_vars|api_?key|secret|password|hf_token|access_token|auth_token)[\w.-]*[\"']?\s*[=:]", re.I)


def note_launch(overrides: Sequence[str]) -> None:
    """For a driver, before it starts Ray: its Hydra overrides, behind the flags that name a yaml of the user's, and the
    folder that their relative paths begin at.
    """
    kept = [override for override in overrides if not _SECRET.search(override)]
    os.environ[LAUNCH_VARIABLE] = json.dumps({"overrides": kept, "folder": str(Path.cwd())})


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line to be printed: `<hidden>` stands for a secret, and start-up asks for a value in its place."""
    return [f"{one.partition('=')[0]}=<hidden>" if _SECRET.search(one) else one for one in arguments]
