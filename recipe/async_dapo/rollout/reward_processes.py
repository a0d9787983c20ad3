"""Processes that run the reward function, each for one call at a time. One that is too slow is ended with all that the
function has started.
"""

import functools
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any
from weakref import WeakSet

from ..config.options import REWARD_IMPORT_LIMIT_S
from .reward_process import Answer, shown_name

PROGRAM = Path(__file__).with_name("reward_process.py")
SLOW_S = 1.0  # a call that has waited for a process for longer than this may start another one

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class RewardRaised(Exception):
    """The reward function raised: what and where in one line, and the traceback."""

    def __init__(self, summary: str, traceback: str) -> None:
        super().__init__(summary, traceback)
        self.summary, self.traceback = summary, traceback

    def __str__(self) -> str:
        return self.summary


class NoScore(RewardRaised):
    """The reward function has returned neither a number nor a dict with one as `score`."""


class RewardProcessKilled(TimeoutError):
    """The reward function has not answered in time, and only the end of its process ended it."""


class RewardProcessDied(Exception):
    """The process ended while the reward function ran."""


class RewardNotLoaded(Exception):
    """The reward function cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """The user's function.

    Attributes:
        path: `pkg://` and a module, or a file.
        constants: arguments that are the same in every call; they are sent once.
        timeout_s: longest time a call may run [s].
    """

    path: str
    name: str
    timeout_s: float
    constants: dict[str, Any] = field(default_factory=dict)

    def result_of(self, answer: Answer) -> Any:
        """
        Raises:
            RewardRaised, TimeoutError: what the call is to blame for.
        """
        status, content = answer
        if status == "timeout":
            raise TimeoutError(content)
        if status == "raised":
            raise RewardRaised(*content)
        if status == "no_score":
            raise NoScore(f"{self.name} of {shown_name(self.path)} {content}", "")
        return content


class RewardProcess:
    """A process for one call at a time. It imports the function ahead of its first one."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function
        self._connection, theirs = Pipe()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-u", str(PROGRAM), str(theirs.fileno())],
                stdin=subprocess.PIPE,  # never written to: it closes with the reward worker
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it is killed with all that it has started
            )
        self._is_loaded = False
        self._ending = threading.Lock()

    def is_alive(self) -> bool:
        """Asked between calls: then nothing comes from the process but its end. What it has forked may keep the
        connection open; a process that has ended is left for `end` to reap, so that the group's number stays its own.
        """
        if self._popen.returncode is None and (self._connection.poll() or os.waitid(os.P_PID, self._popen.pid, _ENDED)):
            self.end()
        return self._popen.returncode is None

    def ask(self, arguments: dict[str, Any]) -> Any:
        """Run the function.

        Raises:
            RewardRaised, TimeoutError, RewardProcessDied, RewardNotLoaded: what the call is to blame for.
        """
        if not self._is_loaded:
            self._load()
        return self._function.result_of(self._exchange(arguments, limit_s=self._function.timeout_s))

    def end(self) -> int:
        """Kill the process with all that it has started. Returns its exit code. Called in any thread."""
        with self._ending:
            if self._popen.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)
            with self._popen:  # closes its input
                return self._popen.wait()

    def _load(self) -> None:
        function, paths = self._function, [path or os.getcwd() for path in sys.path]
        named = (function.path, function.name, function.constants)
        try:
            status, detail = self._exchange(paths, named, limit_s=REWARD_IMPORT_LIMIT_S)
        except RewardProcessKilled:
            what = f"its module has not been imported within {REWARD_IMPORT_LIMIT_S:.0f} s"
            raise RewardNotLoaded(what) from None
        except RewardProcessDied as error:
            raise RewardNotLoaded(f"{error} on import") from None
        if status == "failed":
            self.end()
            raise RewardNotLoaded(detail)
        self._is_loaded = True

    def _exchange(self, *messages: Any, limit_s: float) -> Any:
        """What the process answers; it is ended if it does not.

        Raises:
            RewardProcessKilled: at the limit.
            RewardProcessDied: if it has ended.
        """
        packed = [pickle.dumps(message, protocol=5) for message in messages]
        with socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", *divmod(round(limit_s * 1e6), 10**6)))
        try:
            for message in packed:
                self._connection.send_bytes(message)
            if self._connection.poll(limit_s):
                return pickle.loads(self._connection.recv_bytes())
        except BlockingIOError:
            pass  # it neither reads on nor goes on with its answer
        except (EOFError, OSError):
            code = self.end()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise RewardProcessDied(f"its process has ended ({how})") from None
        self.end()
        raise RewardProcessKilled(f"no answer within {limit_s} s; its process has been killed")


class RewardProcesses:
    """The processes of one reward worker: one that is too slow is killed and replaced. Calls wait in line for one;
    their time runs from when they have it.

    Args:
        limit: most processes at once [count, >= 1].
        start: starts a process.
    """

    def __init__(
        self, function: RewardFunction, *, limit: int, start: Callable[[RewardFunction], RewardProcess] = RewardProcess
    ) -> None:
        self._start = functools.partial(start, function)
        self._threads = ThreadPoolExecutor(limit, "reward-process")  # a call has one while it has a process
        self._idle: LifoQueue[RewardProcess | None] = LifoQueue()
        self._idle.put(None)  # the first process starts at once
        self._started: WeakSet[RewardProcess] = WeakSet()

    def submit(self, arguments: dict[str, Any]) -> Future[Any]:
        """The reward function's result, or what `RewardProcess.ask` raises."""
        return self._threads.submit(self._call, arguments)

    def close(self) -> None:
        """End the processes, and with them the calls that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in tuple(self._started):
            process.end()

    def _call(self, arguments: dict[str, Any]) -> Any:
        try:
            process = self._idle.get(timeout=SLOW_S)
        except Empty:
            process = None
        try:
            if process is None or not process.is_alive():
                process = self._start()
                self._started.add(process)
            return process.ask(arguments)
        finally:
            self._idle.put(process)
