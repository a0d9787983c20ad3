"""The reward function that verl's reward workers load: it hands each call to a process that can be ended.

verl's reward managers stay as they are, and call it like any other. What such a function may do wrong in verl's own
worker, on one of its threads or on its event loop, ends nothing here but its own call: it never returns, exits, raises
`KeyboardInterrupt`, breaks the interpreter.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict

from ..config.options import RewardConfig
from .reward_process import load
from .started_process import CallLost, RewardFunction, RewardProcess

SLOW_S = 1.0  # while a call runs for longer than this, another process may start: it holds up no other

# What verl passes with every call, and is the same in all; a tokenizer takes as long to pack as an answer to score.
SENT_ONCE = ("reward_router_address", "reward_model_tokenizer")
MANAGERS_OF_PLAIN_FUNCTIONS = ("remote",)
MIN_PROCESSES = 2  # one that never returns may hold up no other call


class RewardProcesses:
    """The processes of one reward worker: one that is too slow is killed and replaced. Calls wait in line for one;
    their time runs from when they have it.

    A plain function has a process for itself while it runs. A coroutine function shares one with all its calls, which
    end by cancellation; should it block that process all the same, or end it, its calls are tried again with a process
    each: then it is known which was to blame, and the others have their scores.

    Args:
        start: starts a process.
        limit: most processes at once [count, >= 1].
    """

    def __init__(self, start: Callable[[], Awaitable[RewardProcess]], *, limit: int) -> None:
        self._start = start
        self._permits = asyncio.Semaphore(1)  # more are added while calls are slow
        self._unused_permits = limit - 1
        self._idle: list[RewardProcess] = []
        self._shared: RewardProcess | None = None

    async def call(self, arguments: dict[str, Any]) -> Any:
        """The reward function's result.

        Raises:
            RewardRaised, RewardTimedOut, RewardProcessDied, RewardNotLoaded: what this call is to blame for.
        """
        async with self._permits:
            process = self._shared
            if process is None or not process.is_alive:
                process = await self._take()
            if not process.takes_many:
                return await self._ask_alone(process, arguments)
            self._shared = process
        try:
            return await process.ask(arguments)
        except CallLost:
            async with self._permits:
                return await self._ask_alone(await self._take(), arguments)

    async def close(self) -> None:
        """End the processes. No call may be running."""
        for process in (*self._idle, *([self._shared] if self._shared else [])):
            await process.end()

    async def _take(self) -> RewardProcess:
        while self._idle:
            if (process := self._idle.pop()).is_alive:
                return process
        return await self._start()

    async def _ask_alone(self, process: RewardProcess, arguments: dict[str, Any]) -> Any:
        slow = asyncio.get_running_loop().call_later(SLOW_S, self._add_permit)
        try:
            return await process.ask(arguments)
        finally:
            slow.cancel()
            self._idle.append(process)

    def _add_permit(self) -> None:
        if self._unused_permits > 0:
            self._unused_permits -= 1
            self._permits.release()


def isolate_reward(config: DictConfig, options: RewardConfig) -> None:
    """Put this module's function in the place of the user's, in place.

    A sandbox's rewards stay with verl, which limits how many of its requests are out over all threads of a worker.
    """
    reward = config.reward
    custom = reward.custom_reward_function
    if options.processes == 0 or (custom.path is None and reward.sandbox_fusion.url):
        return
    function = function_of(config, timeout_s=options.timeout_s)
    is_plain = _wants_plain_function(reward, function)
    with open_dict(config):
        custom.path = f"pkg://{__name__}"
        custom.name = "compute_score_blocking" if is_plain else "compute_score"
        custom.reward_kwargs = {
            "isolated": {
                "function": asdict(function),
                "processes": options.processes,
                "num_workers": reward.num_workers,
            }
        }


def function_of(config: DictConfig, *, timeout_s: float) -> RewardFunction:
    """The user's function, or verl's own, which chooses by the data source."""
    custom = config.reward.custom_reward_function
    if custom.path is None:
        return RewardFunction(path="pkg://verl.utils.reward_score", name="default_compute_score", timeout_s=timeout_s)
    constants = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(custom.get("reward_kwargs") or {})))
    return RewardFunction(path=custom.path, name=custom.name, timeout_s=timeout_s, constants=constants)


def _wants_plain_function(reward: DictConfig, function: RewardFunction) -> bool:
    """verl's managers await a coroutine function; one of the user's may know only the kind that his function is of."""
    manager = reward.reward_manager
    if manager.source == "register":
        return manager.name in MANAGERS_OF_PLAIN_FUNCTIONS
    return not inspect.iscoroutinefunction(load(function.path, function.name))


class _Host:
    """The processes of this reward worker, served on a thread of their own.

    Args:
        settings: as `isolate_reward` wrote them.
        constants: further arguments that are the same in every call.
    """

    def __init__(self, settings: Any, constants: dict[str, Any]) -> None:
        plain = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(settings)))
        function = RewardFunction(**plain["function"])
        function.constants.update(constants)
        limit = plain["processes"] or max(MIN_PROCESSES, len(os.sched_getaffinity(0)) // plain["num_workers"])
        self._processes = RewardProcesses(lambda: RewardProcess.start(function), limit=limit)
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._loop.run_forever, name="reward-processes", daemon=True).start()

    def submit(self, arguments: dict[str, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._processes.call(arguments), self._loop)


_host: _Host | None = None
_lock = threading.Lock()


def _submit(isolated: Any, arguments: dict[str, Any]) -> Future[Any]:
    global _host
    constants = {key: arguments.pop(key) for key in SENT_ONCE if key in arguments}
    with _lock:
        if _host is None:
            _host = _Host(isolated, constants)
    return _host.submit(arguments)


async def compute_score(*, isolated: Any, **arguments: Any) -> Any:
    return await asyncio.wrap_future(_submit(isolated, arguments))


def compute_score_blocking(*, isolated: Any, **arguments: Any) -> Any:
    return _submit(isolated, arguments).result()
