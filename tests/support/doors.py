"""What a run shows to the world: the addresses it listens on, and the secrets that it writes down."""

import ipaddress
import json
import os
import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import psutil

from recipe.async_dapo_lab.quickstart.supervision import TrainingProcess

# In the environment of every run of the tests.
SECRETS = {name: f"kept-secret-of-{name.lower()}" for name in ("HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD")}
_FILE = "doors.json"


@dataclass(slots=True)
class Doors:
    """Noted whenever a step has been trained.

    Attributes:
        listening: most TCP sockets of all processes that listened at once.
        reachable: those that other machines could reach, with their processes.
        told: files of the run, Ray's logs included, that hold one of `SECRETS`.
    """

    listening: int = 0
    reachable: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    looked_at_step: int = 0

    def look(self, process: TrainingProcess, *, trained_steps: int) -> None:
        if trained_steps == self.looked_at_step:
            return
        self.looked_at_step = trained_steps
        sockets = [socket for one in process.descendants() for socket in _listening(one)]
        self.listening = max(self.listening, len(sockets))
        self.reachable += [title for address, title in sockets if not _is_loopback(address)]

    def write(self, folder: Path, *more: Path) -> None:
        self.told = files_with(SECRETS.values(), folder, *more)
        (folder / _FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(**json.loads((folder / _FILE).read_text()))


def _listening(process: psutil.Process) -> list[tuple[str, str]]:
    try:
        title = " ".join(process.cmdline())[:80]
        return [
            (one.laddr.ip, f"{one.laddr.ip}:{one.laddr.port} of {title}")
            for one in process.net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        ]
    except psutil.NoSuchProcess:
        return []


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def free_ports(count: int) -> list[int]:
    """Below those that the system gives to whoever asks for any: a server of another test may ask meanwhile."""
    with ExitStack() as sockets:
        bound: list[socket.socket] = []
        while len(bound) < count:
            with suppress(OSError):
                port = random.randrange(20_000, 30_000)
                bound.append(sockets.enter_context(socket.create_server(("127.0.0.1", port))))
        return [each.getsockname()[1] for each in bound]


def files_with(secrets: Iterable[str], *folders: Path) -> list[str]:
    """Files in these folders that hold one of the secrets."""
    words = [secret.encode() for secret in secrets]
    found = []
    walked = (entry for folder in folders for entry in os.walk(folder))
    for path in (Path(folder, name) for folder, _, names in walked for name in names):
        with suppress(FileNotFoundError):  # a folder may be in use
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found += [str(path)] * any(word in content for word in words)
    return found
