"""One fork server for all tests of a session, whichever of its processes needs it first."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

from filelock import FileLock

from recipe.async_dapo_lab.quickstart import fork_server
from recipe.async_dapo_lab.quickstart.forks.server import EXECUTABLE, SOCKET

OWNER = "FORK_SERVER_OWNER"  # the process that the server ends with: pytest's first one, whatever its lanes
ROOT = Path(__file__).resolve().parents[2]


def own_the_server() -> None:
    """For pytest's first process, before it starts others."""
    os.environ.setdefault(OWNER, str(os.getpid()))


def executable(modules: Sequence[str] = fork_server.MODULES) -> str:
    """In place of `sys.executable`; starts the server, if no process of this session has done so."""
    own_the_server()
    folder = Path(tempfile.gettempdir(), f"ad-forks-{os.environ[OWNER]}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with FileLock(folder / "lock"):
        if not _answers(folder / SOCKET):
            with fork_server.start(folder, owner=int(os.environ[OWNER]), modules=modules) as starting:
                fork_server.ready(folder, starting)
    return str(folder / EXECUTABLE)


class ForkedTraining(fork_server.ForkedTraining):
    """By this session's server. The command's first word is Python."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__([executable(), *command[1:]], **options)


def _answers(address: Path) -> bool:
    with socket(AF_UNIX) as asks:
        return asks.connect_ex(str(address)) == 0
