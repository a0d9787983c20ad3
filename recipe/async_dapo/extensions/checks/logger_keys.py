"""What loggers need to reach their servers: without it they end a run once engines are up, or record nothing."""

import netrc
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

_WANDB_HOST = "https://api.wandb.ai"
_CLEARML = ("API_ACCESS_KEY", "CONFIG_FILE", "OFFLINE_MODE")  # each with the name that it had before, too
_VOLCANO = ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION")
_DATABRICKS = ("DATABRICKS_TOKEN", "DATABRICKS_CLIENT_ID", "DATABRICKS_CONFIG_FILE", "ARM_CLIENT_ID")

Environment = Mapping[str, str]


class Account(NamedTuple):
    """How a logger's server knows who writes.

    Attributes:
        is_known: judges the variables of the processes that train, and the files of this home.
        remedy: what to do otherwise.
        then: what becomes of the run otherwise.
    """

    is_known: Callable[[Environment], bool]
    remedy: str
    then: str = "would end the run"


def lacking(loggers: list[str], environment: Environment) -> list[str]:
    """What is missing for these loggers, in words, each with the remedy."""
    return [
        f"{name} finds no key on this machine, and {account.then} once engines are up; {account.remedy}, or leave "
        f"{name} out"
        for name, account in ACCOUNTS.items()
        if name in loggers and not account.is_known(environment)
    ]


def _exists(*files: str | Path) -> bool:
    return any(Path(file).expanduser().exists() for file in files)


def _wandb(environment: Environment) -> bool:
    """A key, or a file of settings, which may hold one or another mode."""
    if environment.get("WANDB_MODE", "online") not in ("online", "shared"):
        return True
    own = Path(environment.get("WANDB_CONFIG_DIR", "~/.config/wandb")) / "settings"
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if _exists("wandb/settings", own):
        return True
    host = urlsplit(environment.get("WANDB_BASE_URL", _WANDB_HOST)).hostname or ""
    for name in (environment.get("NETRC"), "~/.netrc", "~/_netrc"):
        with suppress(OSError, netrc.NetrcParseError):
            if name and netrc.netrc(str(Path(name).expanduser())).authenticators(host):
                return True
    return False


def _swanlab(environment: Environment) -> bool:
    if environment.get("SWANLAB_MODE", "cloud") not in ("cloud", "online"):
        return True
    home = environment.get("SWANLAB_ROOT") or environment.get("SWANLAB_SAVE_DIR") or "~/.swanlab"
    return bool(environment.get("SWANLAB_API_KEY")) or _exists(".swanlab/.netrc", Path(home) / ".netrc")


def _clearml(environment: Environment) -> bool:
    names = (f"{owner}_{name}" for owner in ("CLEARML", "TRAINS") for name in _CLEARML)
    named = any(environment.get(name) for name in (*names, "CLEARML_AUTH_TOKEN", "CLEARML_IGNORE_MISSING_CONFIG"))
    return named or _exists("~/clearml.conf", "~/trains.conf")


def _volcano(environment: Environment) -> bool:
    return all(name in environment for name in _VOLCANO)


def _mlflow(environment: Environment) -> bool:
    """Its own servers may let anyone write."""
    if not environment.get("MLFLOW_TRACKING_URI", "").startswith("databricks"):
        return True
    return any(environment.get(name) for name in _DATABRICKS) or _exists("~/.databrickscfg")


def _trackio(environment: Environment) -> bool:
    """Without a Space or a server it writes to this machine."""
    if server := environment.get("TRACKIO_SERVER_URL"):
        return bool(environment.get("TRACKIO_WRITE_TOKEN")) or "write_token" in parse_qs(urlsplit(server).query)
    if not environment.get("TRACKIO_SPACE_ID"):
        return True
    home = Path(environment.get("HF_HOME", "~/.cache/huggingface"))
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    return bool(token) or _exists(environment.get("HF_TOKEN_PATH") or home / "token")


_OF_WANDB = Account(_wandb, "run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline")
# Each was read in the package's own source: wandb 0.31, swanlab 0.10, clearml 2.1, trackio 0.43, and verl's tracking.
ACCOUNTS = {
    "wandb": _OF_WANDB,
    "tracking": _OF_WANDB,
    "swanlab": Account(_swanlab, "run `swanlab login`, set SWANLAB_API_KEY, or set SWANLAB_MODE=local"),
    "clearml": Account(
        _clearml,
        "run `clearml-init`, set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or set CLEARML_OFFLINE_MODE=1",
    ),
    "vemlp_wandb": Account(_volcano, f"set {', '.join(_VOLCANO)}"),
    "mlflow": Account(
        _mlflow,
        "set DATABRICKS_HOST and DATABRICKS_TOKEN, or another MLFLOW_TRACKING_URI",
        "verl would go on without it",
    ),
    "trackio": Account(
        _trackio,
        "set HF_TOKEN or run `hf auth login` for TRACKIO_SPACE_ID, and TRACKIO_WRITE_TOKEN for TRACKIO_SERVER_URL",
    ),
}
