"""Tries the reward function once per data source, before a cluster starts."""

import asyncio
from typing import Any

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig, ConfigError
from ..files.plain_values import to_plain
from ..rollout.reward_isolation import function_of
from ..rollout.reward_pool import RewardPool
from ..rollout.started_process import RewardNotLoaded, RewardProcess, RewardProcessDied, RewardRaised

MAX_SOURCES = 64
VERLS_FIELD = "reward"  # validation lists scores under it: another field of that name would shift them all
_ESCAPE = "or set async_dapo.reward.check_at_start=False"


def check_reward(config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]]) -> None:
    """Score an empty answer to each row as the reward workers do, and see that the filter's metric is returned.

    Custom reward managers, reward models and sandboxes are not tried: they need the cluster.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    reward = config.reward
    custom = reward.custom_reward_function
    needs_cluster = reward.reward_model.enable or (custom.path is None and reward.sandbox_fusion.url)
    if reward.reward_manager.source != "register" or needs_cluster:
        return
    asyncio.run(_check_rows(config, options, rows[:MAX_SOURCES]))


async def _check_rows(config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]]) -> None:
    custom = config.reward.custom_reward_function
    function = function_of(config, timeout_s=options.reward.timeout_s)
    pool = RewardPool(lambda: RewardProcess.start(function), limit=1)
    try:
        for row in rows:
            # The option to blame: without a custom function verl chooses one by the data source.
            key, value = ("reward.custom_reward_function.path", custom.path)
            if custom.path is None:
                key, value = "data_source", row["data_source"]
            result = await _try(pool, row, key=key, value=value, timeout_s=options.reward.timeout_s)
            _check_result(result, options.filter.metric, key=key, value=value)
    finally:
        await pool.close()


async def _try(pool: RewardPool, row: dict[str, Any], *, key: str, value: str, timeout_s: float) -> Any:
    """The function's result.

    Raises:
        ConfigError: if there is none.
    """
    arguments = {
        "data_source": row["data_source"],
        "solution_str": "",
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": dict(row.get("extra_info") or {}),
    }
    try:
        return await pool.call(arguments)
    except RewardNotLoaded as error:
        raise ConfigError(key, value, f"cannot load it: {error}; correct the path, the name or the module") from error
    except TimeoutError as error:
        raise ConfigError(
            key, value, f"gave no answer within async_dapo.reward.timeout_s={timeout_s}; make it faster, {_ESCAPE}"
        ) from error
    except (RewardRaised, RewardProcessDied) as error:
        how = f"raised {error}" if isinstance(error, RewardRaised) else str(error)
        raise ConfigError(
            key, value, f"the reward function {how} on an empty answer; make it return a score, {_ESCAPE}"
        ) from error


def _check_result(result: Any, metric: str | None, *, key: str, value: str) -> None:
    from ..rollout.reward import is_finite, metric_missing

    returned = result if isinstance(result, dict) else {"acc": result}  # what verl makes of a bare number
    if isinstance(result, dict) and "score" not in result:
        raise ConfigError(key, value, f"the reward function returns {sorted(result)} without `score`; add it")
    if VERLS_FIELD in returned:
        raise ConfigError(
            key, value, f"the reward function returns `{VERLS_FIELD}`, verl's name for the score itself; rename it"
        )
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
