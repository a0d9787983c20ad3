"""Rewards: the function is tried once per data source, before a cluster starts; options of reward models and of length
penalties that verl would ignore, or that fail after the first rollout, are refused.
"""

import asyncio
from functools import partial
from typing import Any

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig
from ..option_values import ConfigError, check_each, did_you_mean, refused
from ..record.plain_values import to_plain
from ..rollout.reward_isolation import RewardPool, function_of
from ..rollout.started_process import RewardNotLoaded, RewardProcess, RewardProcessDied, RewardRaised

MAX_SOURCES = 64
VERLS_FIELD = "reward"  # validation lists scores under it: another field of that name would shift them all


def check_reward(config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]]) -> str:
    """Score an empty answer to each row as the reward workers do, and see that the filter's metric is returned.

    Custom reward managers, reward models, sandboxes and functions that use Ray are not tried: they need the cluster.

    Returns:
        The function, in words.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    if options.reward.processes == 0:
        return f"{options.reward_function}, not tried: async_dapo.reward.processes=0"
    reward = config.reward
    custom = reward.custom_reward_function
    needs_cluster = reward.reward_model.enable or (custom.path is None and reward.sandbox_fusion.url)
    if reward.reward_manager.source == "register" and not needs_cluster:
        asyncio.run(_check_rows(config, options, rows[:MAX_SOURCES]))
    return options.reward_function


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
            key, value, f"gave no answer within async_dapo.reward.timeout_s={timeout_s}; make it faster, or raise that"
        ) from error
    except (RewardRaised, RewardProcessDied) as error:
        how = f"raised {error}" if isinstance(error, RewardRaised) else str(error)
        raise ConfigError(
            key, value, f"the reward function {how} on an empty answer; make it return a score"
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


def check_reward_options(config: DictConfig) -> None:
    """Check the options of reward manager, reward model, reward workers and overlong penalty.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    checks = (_check_reward_manager, _check_reward_model, _check_overlong_penalty)
    check_each([partial(check, config) for check in checks])


def _check_reward_manager(config: DictConfig) -> None:
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    manager = config.reward.reward_manager
    if manager.source == "register" and manager.name not in REWARD_MANAGER:
        remedy = (
            f"must be one of {', '.join(REWARD_MANAGER)}, or a class of your own with "
            "reward.reward_manager.source=importlib and reward.reward_manager.module.path"
        )
        raise refused(config, "reward.reward_manager.name", remedy + did_you_mean(manager.name, REWARD_MANAGER))


def _check_reward_model(config: DictConfig) -> None:
    reward = config.reward
    model = reward.reward_model
    if model.enable and not model.enable_resource_pool:
        raise refused(
            config,
            "reward.reward_model.enable_resource_pool",
            "a reward model on the trainer's GPUs scores only after the rollout, so groups cannot be judged inline; "
            "set it to True or use a rule-based reward",
        )
    if model.enable and model.rollout.free_cache_engine:
        raise refused(
            config,
            "reward.reward_model.rollout.free_cache_engine",
            "verl would put the reward model's engines to sleep at start-up, and wakes them only for rewards after the "
            "rollout; set it to False",
        )
    if model.enable and reward.custom_reward_function.path is None:
        raise refused(
            config,
            "reward.custom_reward_function.path",
            "verl's agent loops cannot read the score of a reward model alone, which comes without further metrics; "
            "name a reward function that asks the model (its argument reward_router_address) and returns a dict",
        )
    if model.enable_resource_pool and not model.enable:
        remedy = "would reserve GPUs for nothing: reward.reward_model.enable=False; set both or neither"
        raise refused(config, "reward.reward_model.enable_resource_pool", remedy)


def _check_overlong_penalty(config: DictConfig) -> None:
    manager, kwargs = config.reward.reward_manager, config.reward.reward_kwargs
    overlong = kwargs.overlong_buffer_cfg
    if not overlong.enable:
        return
    prefix = "reward.reward_kwargs."
    if manager.source == "register" and manager.name != "dapo":
        remedy = f"is ignored by reward.reward_manager.name={manager.name}; use dapo, or disable it"
        raise refused(config, prefix + "overlong_buffer_cfg.enable", remedy)
    if kwargs.max_resp_len != (limit_tok := config.data.max_response_length):
        remedy = f"must equal data.max_response_length={limit_tok}, where responses end"
        raise refused(config, prefix + "max_resp_len", remedy)
    if not 1 <= overlong.len <= limit_tok:
        remedy = f"must be in 1..{limit_tok}; set overlong_buffer_cfg.enable=False to disable"
        raise refused(config, prefix + "overlong_buffer_cfg.len", remedy)
    if overlong.penalty_factor <= 0:
        raise refused(config, prefix + "overlong_buffer_cfg.penalty_factor", "must be > 0")
