"""Environment variables that say where verl's loggers write, and how: the task runner, which has the loggers, may run
on another node, in another folder.

No secrets are among them: verl prints the runtime environment. They are set where Ray is started.
"""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

# Read by `verl.utils.tracking` (a contract test compares them), or by the loggers' own packages.
PLAIN = (
    "WANDB_MODE",
    "WANDB_ENTITY",
    "WANDB_RUN_ID",
    "WANDB_RESUME",
    "WANDB_RUN_GROUP",
    "WANDB_TAGS",
    "WANDB_NOTES",
    "MLFLOW_RUN_ID",
    "SWANLAB_MODE",
    "TRACKIO_SPACE_ID",
    "CLEARML_OFFLINE_MODE",
    "MLP_TRACKING_REGION",
    "VERL_RL_INSIGHT_ENABLE",
)
# Made absolute. One with a password or a token in it stays here, as of the addresses.
FOLDERS = (
    "VERL_FILE_LOGGER_PATH",
    "VERL_FILE_LOGGER_ROOT",
    "TENSORBOARD_DIR",
    "WANDB_DIR",
    "SWANLAB_LOG_DIR",
    "TRACKIO_DIR",
)
ADDRESSES = (
    "MLFLOW_TRACKING_URI",
    "WANDB_BASE_URL",
    "SWANLAB_API_HOST",
    "SWANLAB_WEB_HOST",
    "TRACKIO_SERVER_URL",
    "CLEARML_API_HOST",
    "CLEARML_WEB_HOST",
    "CLEARML_FILES_HOST",
)
_TRACKING_URI = "MLFLOW_TRACKING_URI"
_BEFORE_PATHS = ("sqlite:///", "file:", "")  # how it names a file or folder of MLflow's
# Before an "@", where a password may have any character, or in a query.
_SECRET = re.compile(r"://.*@|[?&][^=&]*(?:token|passw|pwd|secret|api_?key|access_?key)[^=&]*=", re.IGNORECASE)


def logger_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that are set, as they mean the same on every node."""
    found = {name: environment[name] for name in PLAIN if name in environment}
    for name in (name for name in (*FOLDERS, *ADDRESSES) if name in environment):
        place = environment[name]
        if _SECRET.search(place):
            logger.warning(
                "%s holds a password or a token, so it is not sent to other nodes, where logs would show it: set it "
                "where Ray is started, or leave the secret out of it",
                name,
            )
        elif name in FOLDERS:
            found[name] = _absolute(place)
        else:
            found[name] = _same_place(place) if name == _TRACKING_URI else place
    return found


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _same_place(address: str) -> str:
    before = next(scheme for scheme in _BEFORE_PATHS if address.startswith(scheme))
    path = address.removeprefix(before)
    return address if not before and (":" in path or path == "databricks") else before + _absolute(path)
