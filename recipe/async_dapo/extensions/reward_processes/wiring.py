"""The reward function's calls go to processes: `wire` puts one of this module's functions in the place of the user's.

verl's reward managers stay as they are, and call it like any other. A coroutine function stays on the event loop of
verl's worker, where as many of its calls run at once as come, unless `async_dapo.reward.processes` names a number.
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

from ...config.options import AsyncDAPOConfig
from ...runtime.containment import value_of
from ...runtime.time_limit import LimitReached, within
from .pool import RewardFunction, RewardProcesses, result_of
from .process import Answer, answer_of, failed, load

MIN_PROCESSES = 2  # one that never returns may hold up no other call

# What verl passes with every call, and is the same in all; a tokenizer takes as long to pack as an answer to score.
SENT_ONCE = ("reward_router_address", "reward_model_tokenizer")

_load = functools.cache(load)


def wire(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Calls wait in line for a process, so the limit of a call is kept where it runs.

    A sandbox's rewards stay with verl, which limits how many of its requests are out over all threads of a worker.
    """
    reward, processes = config.reward, options.reward.processes
    custom = reward.custom_reward_function
    if custom.path is None and OmegaConf.select(config, "reward.sandbox_fusion.url"):
        _say(config, in_words=options.reward_function, waits_in_line=True)
        return
    function = function_of(config, timeout_s=options.reward.timeout_s)
    is_async = inspect.iscoroutinefunction(_load(function.path, function.name))
    # verl's managers await a coroutine function; one of the user's may know only the kind that his function is of.
    is_plain = reward.reward_manager.source != "register" and not is_async
    is_here = is_async and processes is None
    chosen = compute_score_here if is_here else compute_score_blocking if is_plain else compute_score
    replace_remote(config)
    custom.path, custom.name = f"pkg://{__name__}", chosen.__name__
    settings = {"function": asdict(function), "processes": processes, "num_workers": reward.num_workers}
    _say(config, in_words=options.reward_function, waits_in_line=not is_here, **settings)


def _say(config: DictConfig, **said: Any) -> None:
    """See `CALLED` of `config/reading.py`."""
    with open_dict(config):
        config.reward.custom_reward_function.reward_kwargs = {"isolated": said}


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
        isolated: as `wire` wrote it.
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
