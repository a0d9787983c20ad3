"""Starts agents in a process of its own beside each worker: what blocks or crashes there leaves the worker alone.

    worker --{"start": 7, "agent": "module:function" or "command": [...], "sample": ..., "environment": ...}--> host
    worker --{"cancel": 7}-----------------------------------------------------------------------------------> host
    worker <--{"ended": 7, "result": ...} or {"ended": 7, "error": ..., "kind": ...}--------------------------- host

`agent_program.py` is the host's program. It ends, with all commands that it has started, when its worker is gone: the
pipe that it reads from ends then, whatever the worker died of. An agent that has been cancelled ends as well, or its
host takes no further agents, and ends with the last of those that it has.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from ...core.users_errors import Cause, TrajectoryFailed
from .agent_program import LINE_BYTES, PIPES_S, end_group, end_of_process, plain_json

logger = logging.getLogger(__name__)

# Of the worker's environment: the rest may hold secrets (of Ray, Hugging Face, trackers, clouds) that agents, which the
# policy steers, must not see. An agent's own `environment` adds what it needs.
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH"}
    | {"VIRTUAL_ENV", "PYTHONPATH", "CONDA_PREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
END_S = 60.0  # for an agent to end that is cancelled: a thread, or what swallows that, may never


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What agents get of the worker's environment."""
    return {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith("LC_")}


class AgentHost:
    """Runs agents in a process, which is started with the first one, and again after it has died or is held up.

    Functions and commands have one each: a function that ends its process does not end commands.
    """

    _of_loops: ClassVar["WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AgentHost]]"] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._numbers = count()
        self._starting = asyncio.Lock()

    @classmethod
    def of(cls, purpose: str) -> "AgentHost":
        """The one of the running event loop for `functions`, or for `commands`."""
        hosts = cls._of_loops.setdefault(asyncio.get_running_loop(), {})
        return hosts.setdefault(purpose, cls())

    async def run(self, start: dict[str, Any]) -> Any:
        """The agent's result.

        Args:
            start: what the host is told, without its number.

        Raises:
            TrajectoryFailed: if it cannot be started, or ends with an error.
        """
        async with self._starting:
            if self._process is None or self._process.is_over or self._process.is_held_up:
                self._process = await _Process.start()
            process = self._process
        return await process.run(next(self._numbers), start)

    async def stop(self) -> None:
        """End the process and all agents in it. Only tests do: it ends with its worker."""
        if self._process is not None:
            await self._process.stop()


class _Process:
    """One process of agents, and those that run in it: what fails with it are these, and none of the next one's."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._hears, self._tells = process, process.stdin, process.stdout
        self._ended: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._groups: dict[int, int] = {}  # process groups of commands that have not ended, by number
        self._cancelled: dict[int, asyncio.TimerHandle] = {}  # agents that are to end, by number
        self.is_held_up = False  # by one that has not: a function keeps its thread, or the event loop of all
        self._reader = asyncio.create_task(self._read(), name="process of agents")
        self._watcher = asyncio.create_task(self._end_its_group(), name="end of a process of agents")

    @classmethod
    async def start(cls) -> "_Process":
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.agent_program",
            stdin=pipe,
            stdout=pipe,
            limit=2 * LINE_BYTES,
            # Functions are found where the worker finds modules; commands may have an interpreter of their own.
            env=passed_on(os.environ) | {"PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path)},
            start_new_session=True,  # what a terminal or Ray sends to the worker's group is the worker's to pass on
        )
        return cls(process)

    @property
    def is_over(self) -> bool:
        return self._process.returncode is not None or self._reader.done()

    async def run(self, number: int, start: dict[str, Any]) -> Any:
        ended = self._ended[number] = asyncio.get_running_loop().create_future()
        try:
            self._tell({"start": number} | start)
            told = await ended
        except asyncio.CancelledError:
            self._tell({"cancel": number})
            self._cancelled[number] = asyncio.get_running_loop().call_later(END_S, self._hold_up)
            raise
        finally:
            del self._ended[number]
            self._end_if_unused()
        if "error" in told:
            raise TrajectoryFailed(told["kind"], Cause(told["error"], told.get("traceback", "")))
        return told["result"]

    async def stop(self) -> None:
        self._hears.close()
        await asyncio.wait({self._reader, self._watcher})

    def _hold_up(self) -> None:
        self.is_held_up = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self.is_held_up and not self._ended:
            self._hears.close()

    def _tell(self, message: dict[str, Any]) -> None:
        if self._process.returncode is None and not self._hears.is_closing():
            self._hears.write(json.dumps(message, default=plain_json).encode() + b"\n")

    async def _read(self) -> None:
        try:
            async for line in self._tells:
                self._hear(json.loads(line))
        except ValueError as error:  # a line that is no message, or too long: no later one can be trusted
            logger.error("the process of agents is ended: what it told cannot be read: %s", error)
            end_group(self._process.pid)
        code = await self._process.wait()
        for timer in self._cancelled.values():
            timer.cancel()
        for group in self._groups.values():  # the host may have been killed, and could not end them itself
            end_group(group)
        self._groups.clear()
        words = f"the process of agents has ended with {code}; what it said is in the worker's log"
        for future in self._ended.values():
            if not future.done():
                future.set_result({"kind": "agent_failed", "error": words})

    def _hear(self, told: dict[str, Any]) -> None:
        if "group" in told:
            self._groups[told["of"]] = told["group"]
            return
        self._groups.pop(told["ended"], None)
        if (timer := self._cancelled.pop(told["ended"], None)) is not None:
            timer.cancel()
        if told["ended"] in self._ended and not self._ended[told["ended"]].done():
            self._ended[told["ended"]].set_result(told)

    async def _end_its_group(self) -> None:
        """Processes that functions have forked hold its pipe, whose end `_read` waits for."""
        await end_of_process(self._process.pid)
        end_group(self._process.pid)
        await asyncio.wait({self._reader}, timeout=PIPES_S)
        self._process._transport.close()  # type: ignore[attr-defined]  # what has left the group may hold it
