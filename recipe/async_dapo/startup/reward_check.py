"""Rewards: the function is tried once per data source, before a cluster starts; options of reward models and of length
penalties that verl would ignore, or that fail after the first rollout, are refused.
"""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig
from ..option_values import ConfigError, check_each, did_you_mean, refused
from ..rollout.reward_isolation import RewardPool, function_of
from ..rollout.started_process import NoScore, RewardNotLoaded, RewardProcess, RewardProcessDied, RewardRaised
from .model_check import load_by_verl

MAX_SOURCES = 64
SHOWN_CHARS = 60  # of an answer, in errors


def check_reward(config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]]) -> str:
    """Score two answers to each row, an empty one and its ground truth, as the reward workers do, and store the
    group as a run does.

    Custom reward managers, reward models, sandboxes and functions that use Ray are not tried: they need the cluster.

    Returns:
        The function, in words.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    if options.reward.processes == 0:
        return f"{options.reward_function}, not tried: async_dapo.reward.processes=0"
    reward = config.reward
    custom = reward.custom_reward_function
    needs_cluster = reward.reward_model.enable or (custom.path is None and reward.sandbox_fusion.url)
    manager = reward.reward_manager  # `check_reward_options` tells of a name that verl does not know
    is_verls = manager.source == "register" and manager.name in REWARD_MANAGER
    if rows and is_verls and not needs_cluster:
        once = replace(options, reward=replace(options.reward, max_retries=0))
        asyncio.run(_check_rows(config, once, rows[:MAX_SOURCES]))
    return options.reward_function


async def _check_rows(config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]]) -> None:
    from ..rollout.reward import RENAMED_FIELD, VERLS_FIELD
    from ..rollout.trial_group import TrialGroups

    custom = config.reward.custom_reward_function
    function = function_of(config, timeout_s=options.reward.timeout_s)
    pool = RewardPool(lambda: RewardProcess.start(function), limit=1)
    tokenizer = load_by_verl(config).tokenizer
    try:
        trials = TrialGroups(config, tokenizer, pool.call, options)
    except Exception as error:  # verl's managers assert what they want of their options
        remedy = f"cannot be made: {error!r}; correct reward.reward_kwargs"
        raise refused(config, "reward.reward_manager.name", remedy) from error
    try:
        for row in rows:
            # The option to blame: without a custom function verl chooses one by the data source.
            key, value = ("reward.custom_reward_function.path", custom.path)
            if custom.path is None:
                key, value = "data_source", row["data_source"]
            answers = ("", str(row["reward_model"]["ground_truth"]))
            group = trials.group(row, n=len(answers))
            for trajectory, answer in zip(group.trajectories, answers, strict=True):
                what = f"the answer {answer[:SHOWN_CHARS]!r}" if answer else "an empty answer"
                try:
                    await trials.score(group, trajectory, answer)
                except ConfigError:
                    raise
                except Exception as error:
                    raise ConfigError(key, value, _problem(error, what, options.reward.timeout_s)) from error
                if RENAMED_FIELD in trajectory.outputs[-1].rest.extra_fields["reward_extra_info"]:
                    problem = (
                        f"the reward function returns `{VERLS_FIELD}`, verl's name for the score itself; rename it"
                    )
                    raise ConfigError(key, value, problem)
            try:
                trials.store(group)
            except Exception as error:  # of verl's containers, for a column that they do not hold
                problem = (
                    f"a scored group cannot be stored with its columns {sorted(row)}: {error!r}; change or drop one"
                )
                raise ConfigError("data_source", row["data_source"], problem) from error
    finally:
        await pool.close()


def _problem(error: Exception, what: str, timeout_s: float) -> str:
    """In words, with the remedy."""
    match error:
        case RewardNotLoaded():
            return f"cannot load it: {error}; correct the path, the name or the module"
        case TimeoutError():
            return f"gave no answer within async_dapo.reward.timeout_s={timeout_s}; make it faster, or raise that"
        case RewardRaised() if not isinstance(error, NoScore):
            return f"the reward function raised {error} on {what}; make it return a score"
        case RewardProcessDied():
            return f"the reward function {error} on {what}; make it return a score"
    return f"{error} on {what}; return a finite number, or a dict with one as `score`"


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
