"""The reward function in processes of its own: one that is too slow is ended with all that the function has started.

    verl's reward manager --arguments--> `compute_score` --> RewardProcesses --> RewardProcess == reward_process.py
                          <--score, error--          (in a reward worker)     (one call at a time)

verl's reward managers stay as they are, and call it like any other. What a plain function may do wrong in verl's own
worker ends nothing here but its own call: it never returns, exits, raises `KeyboardInterrupt`, breaks the interpreter.
A coroutine function stays on the event loop of verl's worker, where as many of its calls run at once as come, unless
`async_dapo.reward.processes` names a number.
"""

import asyncio
import functools
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any, cast
from weakref import WeakSet

from omegaconf import DictConfig, OmegaConf, open_dict

from ..config.options import REWARD_IMPORT_LIMIT_S, RewardConfig
from ..runtime.aio import LimitReached, within
from ..runtime.containment import value_of
from .reward_process import Answer, answer_of, failed, load

PROGRAM = Path(__file__).with_name("reward_process.py")
SLOW_S = 1.0  # a call that has waited for a process for longer than this may start another one
MIN_PROCESSES = 2  # one that never returns may hold up no other call

# What verl passes with every call, and is the same in all; a tokenizer takes as long to pack as an answer to score.
SENT_ONCE = ("reward_router_address", "reward_model_tokenizer")

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_load = functools.cache(load)


class RewardRaised(Exception):
    """The reward function raised, or returned no score: what and where in one line, and the traceback."""

    def __init__(self, summary: str, traceback: str) -> None:
        super().__init__(summary, traceback)
        self.summary, self.traceback = summary, traceback

    def __str__(self) -> str:
        return self.summary


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


def result_of(answer: Answer) -> Any:
    """
    Raises:
        RewardRaised, TimeoutError: what the call is to blame for.
    """
    status, content, traceback = answer
    if status == "score":
        return content
    raise TimeoutError(content) if status == "timeout" else RewardRaised(content, traceback)


class RewardProcess:
    """A process for one call at a time.

    Raises:
        RewardNotLoaded: if it cannot import the function.
    """

    def __init__(self, function: RewardFunction) -> None:
        self._limit_s = function.timeout_s
        self._ending = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("rb")
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-u", str(PROGRAM), str(theirs.fileno())],
                stdin=subprocess.PIPE,  # never written to: it closes with the reward worker
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it is killed with all that it has started
            )
        paths = [path or os.getcwd() for path in sys.path]
        named = (function.path, function.name, function.constants)
        try:
            problem = self._exchange(paths, named, limit_s=REWARD_IMPORT_LIMIT_S)
        except (RewardProcessKilled, RewardProcessDied) as error:
            problem = f"{error} on import"
        if problem is not None:
            self.end()
            raise RewardNotLoaded(problem)

    def is_alive(self) -> bool:
        """Asked between calls. A process that has ended is left for `end` to reap, so that the group's number stays its
        own."""
        if self._popen.returncode is None and os.waitid(os.P_PID, self._popen.pid, _ENDED):
            self.end()
        return self._popen.returncode is None

    def ask(self, arguments: dict[str, Any]) -> Any:
        """Run the function.

        Raises:
            RewardRaised, TimeoutError, RewardProcessDied: what the call is to blame for.
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
        for process in tuple(self._started):
            process.end()

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


def isolate_reward(config: DictConfig, options: RewardConfig) -> None:
    """Put one of this module's functions in the place of the user's, in place.

    A sandbox's rewards stay with verl, which limits how many of its requests are out over all threads of a worker.
    """
    reward = config.reward
    custom = reward.custom_reward_function
    if options.processes == 0 or (custom.path is None and reward.sandbox_fusion.url):
        return
    function = function_of(config, timeout_s=options.timeout_s)
    is_async = inspect.iscoroutinefunction(_load(function.path, function.name))
    # verl's managers await a coroutine function; one of the user's may know only the kind that his function is of.
    is_plain = reward.reward_manager.source != "register" and not is_async
    is_here = is_async and options.processes is None
    chosen = compute_score_here if is_here else compute_score_blocking if is_plain else compute_score
    settings = {"function": asdict(function), "processes": options.processes, "num_workers": reward.num_workers}
    with open_dict(config):
        replace_remote(config)
        if is_here:
            config.async_dapo.reward.processes = 0
        custom.path, custom.name = f"pkg://{__name__}", chosen.__name__
        custom.reward_kwargs = {"isolated": settings}


def replace_remote(config: DictConfig) -> None:
    """verl's `remote` differs from `naive` only in actors that keep the function apart, as the processes here do."""
    manager = config.reward.reward_manager
    if (manager.source, manager.name) == ("register", "remote"):
        manager.name = "naive"


def function_of(config: DictConfig, *, timeout_s: float) -> RewardFunction:
    """The user's function, or verl's own, which chooses by the data source."""
    custom = config.reward.custom_reward_function
    if custom.path is None:
        return RewardFunction(path="pkg://verl.utils.reward_score", name="default_compute_score", timeout_s=timeout_s)
    given = custom.get("reward_kwargs")
    # Where it is, as its interpolations may name other options.
    constants = {} if given is None else cast(dict[str, Any], OmegaConf.to_container(given, resolve=True))
    return RewardFunction(path=custom.path, name=custom.name, timeout_s=timeout_s, constants=constants)


_processes: RewardProcesses | None = None  # of this reward worker
_lock = threading.Lock()


def _submit(isolated: Any, arguments: dict[str, Any]) -> Future[Any]:
    """
    Args:
        isolated: as `isolate_reward` wrote it.
    """
    global _processes
    constants = {key: arguments.pop(key) for key in SENT_ONCE if key in arguments}
    with _lock:
        if _processes is None:
            function = _function_in(isolated)
            function.constants.update(constants)
            limit = isolated.processes or max(MIN_PROCESSES, len(os.sched_getaffinity(0)) // isolated.num_workers)
            _processes = RewardProcesses(function, limit=limit)
    return _processes.submit(arguments)


def _function_in(isolated: Any) -> RewardFunction:
    return RewardFunction(**cast(dict[str, Any], OmegaConf.to_container(isolated.function)))


async def compute_score(*, isolated: Any, **arguments: Any) -> Any:
    return await asyncio.wrap_future(_submit(isolated, arguments))


def compute_score_blocking(*, isolated: Any, **arguments: Any) -> Any:
    return _submit(isolated, arguments).result()


async def compute_score_here(*, isolated: Any, **arguments: Any) -> Any:
    """A coroutine function without a process. It is cancelled at its time limit."""
    function = _function_in(isolated)
    answer: Answer
    try:
        call = functools.partial(_load(function.path, function.name), **arguments | function.constants)
        answer = answer_of(await within(function.timeout_s, value_of(call)), function.path, function.name)
    except LimitReached:
        answer = "timeout", f"no answer within {function.timeout_s} s", ""
    except Exception as error:
        answer = failed(error)
    return result_of(answer)
