"""Processes of a training as forks of one that has imported what all of them import: 8 CPU seconds for all tests of a
session, in place of 60 for each training.

Ray starts its workers, and `multiprocessing` what it spawns, by the `executable` in place of Python. So nothing of
either is replaced. A fork differs from a process that was started: its parent is the server, its hash seed is that of
all forks, and vLLM took Ray for missing. Who stops its stand-in by SIGSTOP does not stop it.
"""

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from socket import AF_UNIX, socket
from subprocess import DEVNULL

import psutil
from filelock import FileLock

from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.supervision import TrainingProcess

from .forks import shim
from .forks.server import EXECUTABLE, FORKED_FOR, SOCKET

OWNER = "FORK_SERVER_OWNER"  # the process that the server ends with: pytest's first one, whatever its lanes
_LIFE = "LIFE_OF_A_TEST"  # in the environment of all processes of a training
# Entry points of large packages, each with what it needs. Names in the server's command, they leave room for the titles
# of forks, too.
MODULES = (
    "torch",
    "transformers.models.qwen3.modeling_qwen3",
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.cli.serve",
    "vllm.model_executor.models.qwen3_5",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.executor.multiproc_executor",
    "datasets",
    "peft",
    "tensordict",
    "hydra",
    "compressed_tensors.logger",
    "torchdata.stateful_dataloader",
)
ROOT = Path(__file__).resolve().parents[2]
# Of the server. Forks write their environment where it has its own, and their titles before that, as in `own_ray`.
_ROOM = {"ROOM_FOR_ENVIRONMENTS": "." * 64_000, "SPT_NOENV": "1"}


def own_the_server() -> None:
    """For pytest's first process, before it starts others."""
    os.environ.setdefault(OWNER, str(os.getpid()))


def executable(modules: Sequence[str] = MODULES) -> str:
    """In place of `sys.executable`; starts the server, if no process of this session has done so."""
    own_the_server()
    folder = Path(tempfile.gettempdir(), f"ad-forks-{os.environ[OWNER]}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with FileLock(folder / "lock"):
        if not _answers(folder / SOCKET):
            _start(folder, modules)
    return str(folder / EXECUTABLE)


def _answers(address: Path) -> bool:
    with socket(AF_UNIX) as asks:
        return asks.connect_ex(str(address)) == 0


def _start(folder: Path, modules: Sequence[str]) -> None:
    (folder / SOCKET).unlink(missing_ok=True)  # of another session, whose server was killed
    script = folder / EXECUTABLE
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -I -S '{shim.__file__}' '{folder / SOCKET}' \"$@\"\n")
    script.chmod(0o700)
    environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=folder)
    log = folder / "log"
    with log.open("wb") as output:
        started = subprocess.run(
            [sys.executable, "-m", f"{__package__}.forks.server", str(folder), os.environ[OWNER], *modules],
            cwd=ROOT,
            env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | _ROOM,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
        )
    assert started.returncode == 0, log.read_text()


class ForkedTraining(TrainingProcess):
    """A training whose driver, workers and engines are forks. They are no descendants of this process: what belongs to
    the training is told by its environment."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_file: Path,
        grace_s: float = 10.0,
        folder: Path | None = None,
    ) -> None:
        """The command's first word is Python, and its last ones are overrides."""
        self._mark = f"{_LIFE}={uuid.uuid4().hex}".encode()
        name, _, life = self._mark.decode().partition("=")
        python = executable()
        super().__init__(
            [python, *command[1:], f"++ray_kwargs.ray_init.runtime_env.py_executable={python}"],
            environment={**environment, name: life, "SPT_NOENV": "1"},
            log_file=log_file,
            grace_s=grace_s,
            folder=folder,
        )

    def descendants(self) -> list[psutil.Process]:
        known = {process.pid: process for process in super().descendants()}
        for pid in _with(self._mark):
            if pid not in known:
                try:
                    known[pid] = psutil.Process(pid)
                except psutil.NoSuchProcess:
                    pass
        return list(known.values())


def children(process: psutil.Process) -> list[psutil.Process]:
    """Those that it has started, each as itself and not as what stands in for it."""
    found = []
    for child in process.children():
        forks = list(_with(f"{FORKED_FOR}={child.pid}".encode()))
        found.append(psutil.Process(forks[0]) if forks else child)
    return found


def _with(variable: bytes) -> Iterator[int]:
    """Processes that have it in their environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:  # it has ended, or belongs to another user
            pass
