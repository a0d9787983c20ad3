"""Tries the reward function once per data source, before a cluster starts."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig, ConfigError
from ..plain_values import to_plain

MAX_SOURCES = 64

RewardFunction = Callable[..., Any]


def check_reward(config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]]) -> None:
    """Score an empty answer to each row as verl's reward workers do, and see that the filter's metric is returned.

    Custom reward managers, reward models and sandboxes are not tried: they need the cluster.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    function, key, value = _reward_function(config)
    reward = config.reward
    needs_cluster = reward.reward_model.enable or (key == "data_source" and reward.sandbox_fusion.url)
    if reward.reward_manager.source != "register" or needs_cluster:
        return
    for row in rows[:MAX_SOURCES]:
        named = str(row["data_source"] if value is None else value)
        result = _try(function, row, key=key, value=named, timeout_s=options.reward.timeout_s)
        _check_result(result, options.filter.metric, key=key, value=named)


def _reward_function(config: DictConfig) -> tuple[RewardFunction, str, str | None]:
    """The function, and the option to blame; without a custom function verl chooses one by the data source."""
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import default_compute_score

    custom = config.reward.custom_reward_function
    if custom.path is None:
        return default_compute_score, "data_source", None
    try:
        function = get_custom_reward_fn(config)
    except Exception as error:  # loading runs the user's module
        cause = f" ({error.__cause__!r})" if error.__cause__ else ""
        raise ConfigError(
            "reward.custom_reward_function.path",
            custom.path,
            f"cannot load {custom.name}: {error}{cause}; correct the path, the name or the module",
        ) from error
    assert function is not None
    return function, "reward.custom_reward_function.path", custom.path


def _try(function: RewardFunction, row: dict[str, Any], *, key: str, value: str, timeout_s: float) -> Any:
    results: list[Any] = []
    errors: list[Exception] = []

    def call() -> None:
        try:
            result = function(
                data_source=row["data_source"],
                solution_str="",
                ground_truth=row["reward_model"]["ground_truth"],
                extra_info=dict(row.get("extra_info") or {}),
            )
            results.append(asyncio.run(_finish(result)) if inspect.isawaitable(result) else result)
        except Exception as error:  # the user's function may raise anything
            errors.append(error)

    thread = threading.Thread(target=call, name="reward-check", daemon=True)
    thread.start()  # verl's workers call it on a thread, too: a function that needs the main thread fails here
    thread.join(timeout_s)
    escape = "or set async_dapo.reward.check_at_start=False"
    if thread.is_alive():
        raise ConfigError(
            key, value, f"gave no answer within async_dapo.reward.timeout_s={timeout_s}; make it faster, {escape}"
        )
    if errors:
        raise ConfigError(
            key, value, f"the reward function raised {errors[0]!r} on an empty answer; make it return a score, {escape}"
        ) from errors[0]
    return results[0]


async def _finish(awaitable: Any) -> Any:
    return await awaitable


def _check_result(result: Any, metric: str | None, *, key: str, value: str) -> None:
    from ..rollout.reward import is_finite, metric_missing

    returned = result if isinstance(result, dict) else {"acc": result}  # what verl makes of a bare number
    if isinstance(result, dict) and "score" not in result:
        raise ConfigError(key, value, f"the reward function returns {sorted(result)} without `score`; add it")
    try:
        to_plain(returned, source="result")
    except ConfigError as error:
        raise ConfigError(key, value, f"of the reward function's {error}") from error
    if metric is not None and metric not in returned:
        raise metric_missing(metric, returned)
    for name in {"score", "acc", metric} & returned.keys():
        if not is_finite(returned[name]):
            raise ConfigError(
                key, value, f"the reward function returns {name}={returned[name]!r}; return a finite number"
            )
