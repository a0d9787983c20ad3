"""A process that has loaded the reward function, as its reward worker sees it, and what may become of a call."""

import asyncio
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.options import REWARD_IMPORT_LIMIT_S
from .reward_process import SIZE_BYTES, pack, shown_name

PROGRAM = Path(__file__).with_name("reward_process.py")
GRACE_S = 5.0  # longest time from the time limit of a coroutine to its end


class RewardRaised(Exception):
    """The reward function raised: what and where in one line, and the traceback."""

    def __init__(self, summary: str, traceback: str) -> None:
        super().__init__(summary, traceback)
        self.summary, self.traceback = summary, traceback

    def __str__(self) -> str:
        return self.summary


class NoScore(RewardRaised):
    """The reward function has returned neither a number nor a dict with one as `score`."""


class RewardTimedOut(TimeoutError):
    """The reward function has not answered in time."""


class RewardProcessKilled(RewardTimedOut):
    """It has not, and only the end of its process ended it."""


class RewardProcessDied(Exception):
    """The process ended while the reward function ran."""


class RewardNotLoaded(Exception):
    """The reward function cannot be imported."""


class CallLost(Exception):
    """The process has ended with several calls, one of which is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """What a process runs.

    Attributes:
        path: `pkg://` and a module, or a file.
        constants: arguments that are the same in every call; they are sent once.
        timeout_s: longest time a call may run [s].
    """

    path: str
    name: str
    timeout_s: float
    constants: dict[str, Any] = field(default_factory=dict)


class RewardProcess(asyncio.Protocol):
    """A process that has loaded the function, and the calls it is at.

    Args:
        popen: the process.
        name: of its function, for errors.
        timeout_s: longest time a call may run [s].
    """

    def __init__(self, popen: subprocess.Popen, *, name: str, timeout_s: float) -> None:
        self._popen = popen
        self._name = name
        self._timeout_s = timeout_s
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[tuple[str, bytes]]] = {}
        self._received = bytearray()
        loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[tuple[str, Any]] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self.takes_many = False  # calls at once: its function is a coroutine function
        self.is_alive = True

    @classmethod
    async def start(cls, function: RewardFunction) -> "RewardProcess":
        """Start a process and let it import the function.

        Raises:
            RewardNotLoaded: if it cannot, or takes too long.
        """
        popen, connection = _spawn()
        name = f"{function.name} of {shown_name(function.path)}"
        process = cls(popen, name=name, timeout_s=function.timeout_s)
        await asyncio.get_running_loop().create_unix_connection(lambda: process, sock=connection)
        try:
            process._send([path or os.getcwd() for path in sys.path])
            process._send((function.path, function.name, function.constants, function.timeout_s))
            async with asyncio.timeout(REWARD_IMPORT_LIMIT_S):
                status, detail = await process._loaded
        except TimeoutError:
            status, detail = "failed", f"its module has not been imported within {REWARD_IMPORT_LIMIT_S:.0f} s"
        finally:
            if not process._loaded.done():
                process._kill()
        if status == "failed":
            await process.end()
            raise RewardNotLoaded(detail)
        process.takes_many = detail
        return process

    async def ask(self, arguments: dict[str, Any]) -> Any:
        """Run the function.

        Raises:
            CallLost: if the process has ended while it ran this call and others; else see `RewardProcesses.call`.
        """
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._send((number, arguments))
            async with asyncio.timeout(self._timeout_s + (GRACE_S if self.takes_many else 0)):
                status, payload = await answer
        except TimeoutError:
            was_alive = self.is_alive
            self._kill()
            if self._lose_others(number) or not was_alive:
                raise CallLost from None
            raise RewardProcessKilled(f"no answer within {self._timeout_s} s; its process has been killed") from None
        except asyncio.CancelledError:
            if not self.takes_many:
                self._kill()  # it runs on otherwise
            raise
        finally:
            del self._answers[number]
        content = pickle.loads(payload)
        if status == "timeout":
            raise RewardTimedOut(content)
        if status == "raised":
            raise RewardRaised(*content)
        if status == "no_score":
            raise NoScore(f"{self._name} {content}", "")
        return content

    async def end(self) -> None:
        self._kill()
        await self._ended

    def _lose_others(self, number: int) -> bool:
        others = [answer for other, answer in self._answers.items() if other != number and not answer.done()]
        for answer in others:
            answer.set_exception(CallLost())
        return bool(others)

    def _send(self, message: Any) -> None:
        self._transport.write(pack(message))

    def _kill(self) -> None:
        self.is_alive = False
        if self._popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= (end := SIZE_BYTES + int.from_bytes(self._received[:SIZE_BYTES])):
            message = pickle.loads(self._received[SIZE_BYTES:end])
            del self._received[:end]
            if not self._loaded.done():
                self._loaded.set_result(message)
            elif (answer := self._answers.get(message[0])) is not None and not answer.done():
                answer.set_result(message[1:])

    def connection_lost(self, error: Exception | None) -> None:
        self._kill()
        exited = asyncio.get_running_loop().run_in_executor(None, self._popen.wait)
        exited.add_done_callback(lambda exited: self._on_exit(exited.result()))

    def _on_exit(self, code: int) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if not self._loaded.done():
            self._loaded.set_result(("failed", f"its process has ended ({how}) on import"))
        missing = [answer for answer in self._answers.values() if not answer.done()]
        for answer in missing:
            is_alone = len(missing) == 1
            answer.set_exception(RewardProcessDied(f"its process has ended ({how})") if is_alone else CallLost())
        self._ended.set_result(None)


def _spawn() -> tuple[subprocess.Popen, socket.socket]:
    ours, theirs = socket.socketpair()
    try:
        popen = subprocess.Popen(
            [sys.executable, "-P", "-u", str(PROGRAM), str(theirs.fileno())],
            stdin=subprocess.PIPE,  # never written to: it closes with the reward worker
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # it is killed with all that it has started
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return popen, ours
