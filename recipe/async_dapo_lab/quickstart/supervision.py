"""A training process with everything it starts: watched, ended together, nothing left behind. Linux only."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Self

import psutil

_SHARED_MEMORY = Path("/dev/shm")
_SEGMENT_PREFIXES = ("psm_", "verl_weights_")  # of `multiprocessing.shared_memory`, of verl's weight transfer
_PR_SET_CHILD_SUBREAPER = 36
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_INSPECTION_S = 1.0  # too much for every look at the metrics, but
LOOKING_SHARE = 0.02  # of a core at most is spent on it; what others compute meanwhile does not count


def exit_on_signals() -> None:
    """SIGTERM and SIGHUP leave all contexts, as Ctrl-C does, and so end every `TrainingProcess`. The first one counts:
    another would cut that short.
    """
    for number in _ENDING:
        signal.signal(number, _exit)


def _exit(number: int, _frame: object) -> NoReturn:
    for any_number in _ENDING:
        signal.signal(any_number, signal.SIG_IGN)
    sys.exit(128 + number)


class TrainingProcess:
    """Runs a command; leaving the context ends it, its Ray cluster and its engines.

    Ray daemonises and kills its workers hard, so neither the process group nor Python's resource tracker
    is enough: orphans are adopted by this process, and shared memory is recognised by what held it open.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_file: Path,
        grace_s: float = 10.0,
        folder: Path | None = None,
    ) -> None:
        """
        Args:
            grace_s: the time that processes get to end by themselves, before they are killed.
            folder: that it works in; None: that of this process.
        """
        self._command = command
        self._folder = folder
        self._grace_s = grace_s
        self._environment = environment
        self._log_file = log_file
        self.segments: set[Path] = set()  # shared memory that it has had open
        self._next_inspection = 0.0
        self.peak_memory_bytes = 0

    def __enter__(self) -> Self:
        _adopt_orphans()
        self._not_ours = {child.pid for child in psutil.Process().children()}
        try:
            with self._log_file.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others
                )
        except BaseException:  # a signal while it starts: there is no `with` yet that would end it
            for process in (started := self.descendants()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(started)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C waits until everything has ended.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            self.end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def watch(self, seconds: float) -> None:
        """Wait, at most until the process ends, and note now and then what it uses."""
        if time.monotonic() >= self._next_inspection:
            self._inspect()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def end(self, *, grace_s: float | None = None) -> None:
        """Ask the process to end and give Ray time to follow, then kill what is left. Idempotent.

        Args:
            grace_s: instead of the one given at the start; 0 kills all of them without asking.
        """
        grace_s = self._grace_s if grace_s is None else grace_s
        self._inspect()
        if self.exit_code is None and grace_s > 0:
            self._process.terminate()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                pass
        self._process.kill()
        self._process.wait()
        psutil.wait_procs(self.descendants(), timeout=grace_s)
        while remaining := self.descendants():
            for process in remaining:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            psutil.wait_procs(remaining, timeout=1.0)  # nobody may take the exit code of one that is no child of ours
        for segment in self.segments:
            segment.unlink(missing_ok=True)

    def _inspect(self) -> None:
        began, computed = time.monotonic(), time.thread_time()
        processes = self.descendants()
        self.segments.update(segment for process in processes for segment in open_segments(process.pid))
        took = time.thread_time() - computed
        self.peak_memory_bytes = max(self.peak_memory_bytes, self._memory_bytes(processes))
        self._next_inspection = began + max(_INSPECTION_S, took / LOOKING_SHARE)

    def _memory_bytes(self, processes: Sequence[psutil.Process]) -> int:
        return sum(map(_private_bytes, processes))

    def descendants(self) -> list[psutil.Process]:
        """The process and all that it has started, orphans included."""
        found, not_ours = [], set(self._not_ours)
        for process in psutil.Process().children(recursive=True):  # parents first
            if process.pid in not_ours or _parent(process) in not_ours:
                not_ours.add(process.pid)
            else:
                found.append(process)
        return found


class RayFolder:
    """For Ray's sessions and other temporary files of a run; removed on exit.

    Its path is short, because Unix sockets lie in it and their paths end at 107 characters.

    Args:
        path: of the folder, which is not there yet; None: one of its own.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._given = path

    def __enter__(self) -> Self:
        if self._given is not None:
            self._given.mkdir()
        self.path = self._given or Path(tempfile.mkdtemp(prefix="ad-"))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def save_logs(self, target: Path) -> None:
        """Copy the logs of the processes, which say more about a crash than the driver's output."""
        logs = self.path / "session_latest" / "logs"
        if logs.is_dir():
            shutil.copytree(logs, target, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def _adopt_orphans() -> None:
    """Processes whose parent dies become children of this process instead of the system's first one."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


def _private_bytes(process: psutil.Process) -> int:
    """Resident memory, without the pages that are shared with other processes."""
    try:
        memory = process.memory_info()
        return memory.rss - memory.shared
    except psutil.NoSuchProcess:
        return 0


def open_segments(pid: int) -> list[Path]:
    """Shared memory of a training that the process has open."""
    folder = f"/proc/{pid}/fd"
    segments = []
    try:
        for descriptor in os.listdir(folder):
            target = Path(os.readlink(f"{folder}/{descriptor}").removesuffix(" (deleted)"))
            if target.parent == _SHARED_MEMORY and target.name.startswith(_SEGMENT_PREFIXES):
                segments.append(target)
    except OSError:  # the process, or the descriptor, is gone by now
        pass
    return segments
