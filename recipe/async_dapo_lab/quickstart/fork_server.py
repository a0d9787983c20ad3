"""Processes of a training as forks of one that has imported what all of them import: 8 CPU seconds once, in place of 60
for each training.

Ray starts its workers, and `multiprocessing` what it spawns, by the `EXECUTABLE` in place of Python. So nothing of
either is replaced. A fork differs from a process that was started: its parent is the server, its hash seed is that of
all forks, libraries have the options that they read from the server's environment when they were imported, and vLLM
found no Ray. SIGSTOP stops a fork's stand-in, and not the fork.
"""

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Self

import psutil

from .activation import run_environment
from .forks import shim
from .forks.server import EXECUTABLE, FORKED_FOR, SOCKET
from .supervision import LOOKING_SHARE, TrainingProcess

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
    "matplotlib.figure",
)
_CODE_PATH = Path(__file__).resolve().parents[__package__.count(".") + 1]
# What torch and vLLM read as they are imported, as the CPU plugin, and verl for Ray's workers, have it in each process.
_OF_IMPORTS = {"TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARN"}
# Of the server. Forks write their environment where it has its own, and their titles before that, as in `own_ray`.
_ROOM = {"ROOM_FOR_ENVIRONMENTS": "." * 64_000, "SPT_NOENV": "1"}
_LIFE = "LIFE_OF_A_TRAINING"  # in the environment of all its processes
_HOOK = "async_dapo_cpu.forked_workers.start_by_executable"  # reads the other two variables
_MEMORY_S = 15.0  # between two looks


class NoForkServer(Exception):
    """The fork server has not come up; the message says why."""


def start(folder: Path, *, owner: int, modules: Sequence[str] = MODULES) -> "subprocess.Popen[str]":
    """A server in this folder that ends with the process `owner`; `ready` waits for it."""
    (folder / SOCKET).unlink(missing_ok=True)  # of another one, which was killed
    script = folder / EXECUTABLE
    command = shlex.join([sys.executable, "-I", "-S", shim.__file__, str(folder / SOCKET)])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o700)
    environment = run_environment(os.environ, code_path=_CODE_PATH, output=folder, ray_folder=folder)
    with _log(folder).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.forks.server", str(folder), str(owner), *modules],
            cwd=_CODE_PATH,
            env=_OF_IMPORTS | environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | _ROOM,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=log,
            text=True,
            process_group=0,  # Ctrl-C reaches the owner alone
        )


def ready(folder: Path, starting: "subprocess.Popen[str]") -> int:
    """Its process id, when it has imported everything and makes forks.

    Raises:
        NoForkServer: with the last line that it said.
    """
    said, _ = starting.communicate()
    if starting.returncode == 0:
        server = int(said.split()[-1])
        try:
            subprocess.run([folder / EXECUTABLE, "-c", ""], stdin=DEVNULL, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:  # such as a temporary folder where nothing may run
            os.kill(server, signal.SIGTERM)
            raise NoForkServer(_last_line(getattr(error, "stderr", "")) or f"{error}") from error
        return server
    raise NoForkServer(_last_line(_log(folder).read_text()) or f"it ended with exit code {starting.returncode}")


class ForkServer:
    """A fork server of this process. It begins to import when the context is entered, and ends with it.

    Attributes:
        folder: for temporary files, with a short path. It goes with the server, also if this process is killed.
    """

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        self._modules = modules
        self._server: int | None = None  # descriptor

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="ad-"))
        self._starting = start(self.folder, owner=os.getpid(), modules=self._modules)
        return self

    def __exit__(self, *_: object) -> None:
        with self._starting:
            self._starting.kill()  # which has ended, if it was waited for
        if self._server is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._server, signal.SIGTERM)
            select.select([self._server], [], [])  # it may stay a zombie: its parent is the system's first process
            os.close(self._server)
        shutil.rmtree(self.folder, ignore_errors=True)

    def executable(self) -> str:
        """What starts a fork in place of `sys.executable`. Waits until the server has imported everything.

        Raises:
            NoForkServer
        """
        if self._server is None:
            self._server = os.pidfd_open(ready(self.folder, self._starting))
        return str(self.folder / EXECUTABLE)


class ForkedTraining(TrainingProcess):
    """A training whose driver, workers and engines are forks. They are no descendants of this process: a variable in
    their environment says that they belong to the training."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], **options: Any) -> None:
        """
        Args:
            command: begins with a fork server's executable.
            options: as of any training.
        """
        self._mark = f"{_LIFE}={uuid.uuid4().hex}".encode()
        name, _, life = self._mark.decode().partition("=")
        forks = {name: life, "RAY_RUNTIME_ENV_HOOK": _HOOK, "STARTS_RAY_WORKERS": command[0], "SPT_NOENV": "1"}
        if (hook := environment.get("RAY_RUNTIME_ENV_HOOK", _HOOK)) != _HOOK:
            forks["RAY_RUNTIME_ENV_HOOK_OF_USER"] = hook
        super().__init__(command, environment={**environment, **forks}, **options)
        self._next_memory_look = 0.0

    def descendants(self) -> list[psutil.Process]:
        known = {process.pid: process for process in super().descendants()}
        for pid in _with(self._mark):
            if pid not in known:
                with suppress(psutil.NoSuchProcess):
                    known[pid] = psutil.Process(pid)
        return list(known.values())

    def _memory_bytes(self, processes: Sequence[psutil.Process]) -> int:
        """A page that several forks have is counted once. The kernel takes 0.1 s for each process, so this looks now
        and then, and says 0 in between."""
        if (began := time.monotonic()) < self._next_memory_look:
            return 0
        computed = time.thread_time()
        used = sum(map(_share_bytes, processes))
        took = time.thread_time() - computed
        self._next_memory_look = began + max(_MEMORY_S, took / LOOKING_SHARE)
        return used


def children(process: psutil.Process) -> list[psutil.Process]:
    """Those that it has started, each as itself and not as what stands in for it."""
    found = []
    for child in process.children():
        forks = list(_with(f"{FORKED_FOR}={child.pid}".encode()))
        found.append(psutil.Process(forks[0]) if forks else child)
    return found


def _with(variable: bytes) -> Iterator[int]:
    """Processes that have it in their environment."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            shown = Path("/proc", name, "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        if variable in shown and variable in shown.split(b"\0"):
            yield int(name)


def _share_bytes(process: psutil.Process) -> int:
    """Of the memory that it uses: a page of n processes counts as an n-th."""
    try:
        share: int = process.memory_full_info().pss
        return share
    except psutil.Error:
        return 0


def _log(folder: Path) -> Path:
    return folder / "log"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
