"""Processes of a reward worker in which reward functions can be ended: one is killed and replaced when it is too slow.

A plain function has a process for itself while it runs. A coroutine function shares one with all its calls, which end
by cancellation; should it block that process all the same, or end it, its calls are tried again with a process each:
whoever was to blame is known then, and the others have their scores.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from .started_process import CallLost

SLOW_S = 1.0  # a call that runs for longer than this holds up nobody: another process may start


class Process(Protocol):
    """What the pool needs of a process."""

    takes_many: bool  # calls at once: its function is a coroutine function
    is_alive: bool

    async def ask(self, arguments: dict[str, Any]) -> Any: ...

    async def end(self) -> None: ...


class RewardPool:
    """The processes of one reward worker. Calls wait in line for a place; their time runs from when they have one.

    Args:
        start: starts a process.
        limit: most processes at once [count, >= 1].
    """

    def __init__(self, start: Callable[[], Awaitable[Process]], *, limit: int) -> None:
        self._start = start
        self._places = asyncio.Semaphore(1)  # more are added while calls are slow
        self._unused_places = limit - 1
        self._idle: list[Process] = []
        self._shared: Process | None = None

    async def call(self, arguments: dict[str, Any]) -> Any:
        """The reward function's result.

        Raises:
            RewardRaised, RewardTimedOut, RewardProcessDied, RewardNotLoaded: what this call is to blame for.
        """
        async with self._places:
            process = self._shared
            if process is None or not process.is_alive:
                process = await self._take()
            if not process.takes_many:
                return await self._ask_alone(process, arguments)
            self._shared = process
        try:
            return await process.ask(arguments)
        except CallLost:
            async with self._places:
                return await self._ask_alone(await self._take(), arguments)

    async def close(self) -> None:
        """End the processes. No call may be running."""
        for process in (*self._idle, *([self._shared] if self._shared else [])):
            await process.end()

    async def _take(self) -> Process:
        while self._idle:
            if (process := self._idle.pop()).is_alive:
                return process
        return await self._start()

    async def _ask_alone(self, process: Process, arguments: dict[str, Any]) -> Any:
        slow = asyncio.get_running_loop().call_later(SLOW_S, self._add_place)
        try:
            return await process.ask(arguments)
        finally:
            slow.cancel()
            self._idle.append(process)

    def _add_place(self) -> None:
        if self._unused_places > 0:
            self._unused_places -= 1
            self._places.release()
