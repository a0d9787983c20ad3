"""Processes that run the reward function: one that is too slow is ended with all that the function has started.

    verl's reward manager --arguments--> `compute_score` --> RewardProcesses --> RewardProcess == process.py
                          <--score, error-- (wiring.py)     (in a reward worker)  (one call at a time)

What a function may do wrong ends nothing but its own call: it never returns, exits, raises `KeyboardInterrupt`, breaks
the interpreter.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, LifoQueue
from typing import Any
from weakref import WeakSet

from ...config.options import REWARD_IMPORT_LIMIT_S
from ...core.users_errors import NotLoaded, ProcessLost, RaisedElsewhere
from . import process as program
from .declared import KILLED
from .process import Answer

# The new interpreter has the paths of its reward worker before it imports anything, and no arguments of its own.
BEGIN = f"""
import sys
connection, *sys.path = sys.argv[1:]
del sys.argv[1:]
from {program.__name__} import main
main(int(connection))
"""
SLOW_S = 1.0  # a call that has waited for a process for longer than this may start another one

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class RewardProcessKilled(ProcessLost, TimeoutError):
    """The reward function has not answered in time, and only the end of its process ended it."""

    metric = KILLED


class RewardProcessDied(ProcessLost):
    """The process ended while the reward function ran."""

    metric = KILLED


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


def result_of(answer: Answer) -> Any:
    """
    Raises:
        RaisedElsewhere, TimeoutError: what the call is to blame for.
    """
    status, content, traceback = answer
    if status == "score":
        return content
    raise TimeoutError(content) if status == "timeout" else RaisedElsewhere(content, traceback)


class RewardProcess:
    """A process for one call at a time.

    Raises:
        NotLoaded: if it cannot import the function.
    """

    def __init__(self, function: RewardFunction) -> None:
        self._limit_s = function.timeout_s
        self._ending = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("rb")
        paths = [path or os.getcwd() for path in sys.path]
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", BEGIN, str(theirs.fileno()), *paths],
                stdin=subprocess.PIPE,  # never written to: it closes with the reward worker
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it is killed with all that it has started
            )
        named = (function.path, function.name, function.constants)
        try:
            problem = self._exchange(named, limit_s=REWARD_IMPORT_LIMIT_S)
        except (RewardProcessKilled, RewardProcessDied) as error:
            problem = f"{error} on import"
        if problem is not None:
            self.end()
            raise NotLoaded(problem)

    def is_alive(self) -> bool:
        """Asked between calls. A process that has ended is left for `end` to reap, so that the group's number stays its
        own."""
        if self._popen.returncode is None and os.waitid(os.P_PID, self._popen.pid, _ENDED):
            self.end()
        return self._popen.returncode is None

    def ask(self, arguments: dict[str, Any]) -> Any:
        """Run the function.

        Raises:
            RaisedElsewhere, TimeoutError, RewardProcessDied: what the call is to blame for.
        """
        return result_of(self._exchange(arguments, limit_s=self._limit_s))

    def end(self) -> int:
        """Kill the process with all that it has started. Returns its exit code. Called in any thread."""
        with self._ending:
            if self._popen.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)
            with self._popen:  # closes its input
                code = self._popen.wait()
            self._answers.close()
            self._socket.close()
            return code

    def _exchange(self, *messages: Any, limit_s: float) -> Any:
        """What the process answers; it is ended if it does not.

        Raises:
            RewardProcessKilled: at the limit.
            RewardProcessDied: if it has ended.
        """
        packed = b"".join(pickle.dumps(message) for message in messages)
        self._socket.settimeout(limit_s)
        try:
            self._socket.sendall(packed)
            return pickle.load(self._answers)
        except TimeoutError:  # it neither reads on nor goes on with its answer
            self.end()
            raise RewardProcessKilled(f"no answer within {limit_s} s; its process has been killed") from None
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self.end()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise RewardProcessDied(f"its process has ended ({how})") from None


class RewardProcesses:
    """The processes of one reward worker: one that is too slow is killed and replaced. Calls wait in line for one;
    their time runs from when they have it.

    Args:
        limit: most processes at once [count, >= 1].
    """

    def __init__(self, function: RewardFunction, *, limit: int) -> None:
        self._function = function
        self._threads = ThreadPoolExecutor(limit, "reward-process")  # a call has one while it has a process
        self._idle: LifoQueue[RewardProcess | None] = LifoQueue()
        self._idle.put(None)  # the first process starts at once
        self._started: WeakSet[RewardProcess] = WeakSet()

    def submit(self, arguments: dict[str, Any]) -> Future[Any]:
        """The reward function's result, or what `RewardProcess` and its `ask` raise."""
        return self._threads.submit(self._call, arguments)

    def close(self) -> None:
        """End the processes, and with them the calls that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for one in tuple(self._started):
            one.end()

    def _call(self, arguments: dict[str, Any]) -> Any:
        try:
            process = self._idle.get(timeout=SLOW_S)
        except Empty:
            process = None
        try:
            if process is None or not process.is_alive():
                process = RewardProcess(self._function)
                self._started.add(process)
            return process.ask(arguments)
        finally:
            self._idle.put(process)
