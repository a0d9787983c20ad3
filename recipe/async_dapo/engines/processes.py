"""The processes of a server and its engine: their names in messages, what they died of, and their end."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

from ..runtime.logs import engine_exception
from ..weights.stream import sockets_folder

_LOOK_S = 1.0  # between two looks at what is left: a zombie that is not reaped would be waited for
_TAIL_BYTES = 256 * 2**10  # of a log: an exception's record, and what came after it


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcesses:
    """A server's process and those of its engine: their names in messages, and their end when the server has died
    without them. With the times of their starts, as ids are used again."""

    node: str
    pid: int
    started: tuple[tuple[int, float], ...]  # (process id, time of its start), the server's own first

    @classmethod
    def of_this_server(cls, node: str) -> Self:
        """Asked in the server, once its engine runs."""
        own = psutil.Process()
        processes = [own, *own.children(recursive=True)]
        return cls(
            node=node, pid=os.getpid(), started=tuple((process.pid, process.create_time()) for process in processes)
        )

    def __str__(self) -> str:
        return f"node {self.node}, pid {self.pid}"

    def end(self, *, timeout_s: float) -> str | None:
        """Kill those that still run; called on their node. An engine outlives a server that was killed, and keeps its
        accelerator memory, which training needs.

        Args:
            timeout_s: for the kernel to take them down, their accelerator memory included [s].

        Returns:
            The exception that the engine died of; None if it died of something else.

        Raises:
            TimeoutError: when some still run then.
        """
        deadline = time.monotonic() + timeout_s
        while running := [process for pid, since in self.started if (process := _find(pid, since)) is not None]:
            if (left_s := deadline - time.monotonic()) <= 0:
                pids = ", ".join(str(process.pid) for process in running)
                raise TimeoutError(f"engine processes {pids} on node {self.node} run on {timeout_s} s after their kill")
            for process in running:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(running, timeout=min(left_s, _LOOK_S))
        return exception_of(self.pid)


def exception_of(pid: int) -> str | None:
    """What ended the engine of a server, by Ray's log of that process on this node; None if it was no exception."""
    for log in (sockets_folder().parent / "logs").glob(f"worker-*-{pid}.out"):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return engine_exception(file.read().decode(errors="replace"))
    return None


def _find(pid: int, started: float) -> psutil.Process | None:
    """The process, if it still runs."""
    try:
        process = psutil.Process(pid)
        is_same = process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE
        return process if is_same else None
    except psutil.NoSuchProcess:
        return None
