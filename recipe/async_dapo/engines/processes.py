"""The processes of a server: their names in messages, and their end when the server has died without them."""

import os
from dataclasses import dataclass
from typing import Self

import psutil

END_TIMEOUT_S = 10.0  # for the kernel to take down what was killed, its accelerator memory included


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcesses:
    """A server's process and those of its engine, with the times of their starts: ids are used again."""

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

    def end(self) -> None:
        """Kill those that still run; called on their node. An engine outlives a server that was killed, and keeps its
        accelerator memory, which training needs.
        """
        processes = [process for pid, since in self.started if (process := _find(pid, since)) is not None]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(processes, timeout=END_TIMEOUT_S)


def _find(pid: int, started: float) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return process if process.create_time() == started else None
    except psutil.NoSuchProcess:
        return None
