"""Starts agents in a process of its own beside each worker: what blocks or crashes there leaves the worker alone.

    worker --{"start": 7, "agent": "module:function" or "command": [...], "sample": ..., "environment": ...}--> host
    worker --{"cancel": 7}-----------------------------------------------------------------------------------> host
    worker <--{"ended": 7, "result": ...} or {"ended": 7, "error": ..., "kind": ...}--------------------------- host

`agent_program.py` is the host's program. It ends, with all commands that it has started, when its worker is gone: the
pipe that it reads from ends then, whatever the worker died of.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from ...core.outcome import Cause, TrajectoryFailed
from .agent_program import plain_json

# Of the worker's environment: the rest may hold secrets (of Ray, Hugging Face, trackers, clouds) that agents, which the
# policy steers, must not see. An agent's own `environment` adds what it needs.
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH"}
    | {"VIRTUAL_ENV", "PYTHONPATH", "CONDA_PREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
_LINE_BYTES = 2**26  # the longest message


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What agents get of the worker's environment."""
    return {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith("LC_")}


class AgentHost:
    """A process that runs agents, started with the first one, and again after it has died.

    Functions and commands have one each: a function that ends its process does not end commands.
    """

    _of_loops: ClassVar["WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AgentHost]]"] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ended: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._groups: dict[int, int] = {}  # process groups of commands, by number
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
            if self._process is None or self._process.returncode is not None:
                await self._start()
        number = next(self._numbers)
        ended = self._ended[number] = asyncio.get_running_loop().create_future()
        try:
            self._tell({"start": number} | start)
            told = await ended
        except asyncio.CancelledError:
            self._tell({"cancel": number})
            raise
        finally:
            del self._ended[number]
            self._groups.pop(number, None)
        if "error" in told:
            raise TrajectoryFailed(told["kind"], Cause(told["error"], told.get("traceback", "")))
        return told["result"]

    async def stop(self) -> None:
        """End the process and all agents in it. Only tests do: it ends with its worker."""
        if self._process is not None and self._process.stdin is not None and self._reader is not None:
            self._process.stdin.close()
            await self._reader

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        if self._process.returncode is None and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(message, default=plain_json).encode() + b"\n")

    async def _start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.agent_program",
            stdin=pipe,
            stdout=pipe,
            limit=_LINE_BYTES,
            # Functions are found where the worker finds modules; commands may have an interpreter of their own.
            env=passed_on(os.environ) | {"PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path)},
            start_new_session=True,  # what a terminal or Ray sends to the worker's group is the worker's to pass on
        )
        self._reader = asyncio.create_task(self._read(self._process), name="process of agents")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            told = json.loads(line)
            if "group" in told:
                self._groups[told["of"]] = told["group"]
            elif told["ended"] in self._ended and not self._ended[told["ended"]].done():
                self._ended[told["ended"]].set_result(told)
        code = await process.wait()
        for group in self._groups.values():  # the host may have been killed, and could not end them itself
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._groups.clear()
        error = f"the process of agents has ended with {code}; what it said is in the worker's log"
        for future in self._ended.values():
            if not future.done():
                future.set_result({"kind": "agent_failed", "error": error})
