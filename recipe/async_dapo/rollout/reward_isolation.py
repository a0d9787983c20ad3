"""The reward function that verl's reward workers load: it hands each call to a process that can be ended.

verl's reward managers stay as they are, and call it like any other. What a plain function may do wrong in verl's own
worker ends nothing here but its own call: it never returns, exits, raises `KeyboardInterrupt`, breaks the interpreter.
A coroutine function stays on the event loop of verl's worker, where as many of its calls run at once as come, unless
`async_dapo.reward.processes` names a number.
"""

import asyncio
import functools
import inspect
import os
import threading
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict

from ..config.options import RewardConfig
from .reward_process import answer_of, failed, load
from .reward_processes import RewardFunction, RewardProcesses

MIN_PROCESSES = 2  # one that never returns may hold up no other call

# What verl passes with every call, and is the same in all; a tokenizer takes as long to pack as an answer to score.
SENT_ONCE = ("reward_router_address", "reward_model_tokenizer")
MANAGERS_OF_PLAIN_FUNCTIONS = ("remote",)

_load = functools.cache(load)


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
    is_registered = reward.reward_manager.source == "register"
    # verl's managers await a coroutine function; one of the user's may know only the kind that his function is of.
    is_plain = reward.reward_manager.name in MANAGERS_OF_PLAIN_FUNCTIONS if is_registered else not is_async
    is_here = is_async and options.processes is None and not is_plain
    chosen = compute_score_here if is_here else compute_score_blocking if is_plain else compute_score
    settings = {"function": asdict(function), "processes": options.processes, "num_workers": reward.num_workers}
    with open_dict(config):
        if is_here:
            config.async_dapo.reward.processes = 0
        custom.path, custom.name = f"pkg://{__name__}", chosen.__name__
        custom.reward_kwargs = {"isolated": settings}


def function_of(config: DictConfig, *, timeout_s: float) -> RewardFunction:
    """The user's function, or verl's own, which chooses by the data source."""
    custom = config.reward.custom_reward_function
    if custom.path is None:
        return RewardFunction(path="pkg://verl.utils.reward_score", name="default_compute_score", timeout_s=timeout_s)
    constants = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(custom.get("reward_kwargs") or {})))
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
    limit = asyncio.timeout(function.timeout_s)
    try:
        async with limit:
            answer = answer_of(await _load(function.path, function.name)(**arguments | function.constants))
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # from outside, as by a manager's own time limit
        answer = ("timeout", f"no answer within {function.timeout_s} s") if limit.expired() else failed(error)
    return function.result_of(answer)
