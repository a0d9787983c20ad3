"""Reward models and length penalties: combinations that verl would ignore, or that fail after the first rollout."""

from functools import partial

from omegaconf import DictConfig

from ..config import ConfigError
from ..options.values import check_each


def check_reward_options(config: DictConfig) -> None:
    """Check the options of reward model, reward workers and overlong penalty.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    check_each([partial(_check_reward_model, config), partial(_check_overlong_penalty, config)])


def _check_reward_model(config: DictConfig) -> None:
    reward = config.reward
    model = reward.reward_model
    if model.enable and not model.enable_resource_pool:
        raise ConfigError(
            "reward.reward_model.enable_resource_pool",
            False,
            "a reward model on the trainer's GPUs scores only after the rollout, so groups cannot be judged inline; "
            "set it to True or use a rule-based reward",
        )
    if model.enable and model.rollout.free_cache_engine:
        raise ConfigError(
            "reward.reward_model.rollout.free_cache_engine",
            True,
            "verl would put the reward model's engines to sleep at start-up, and wakes them only for rewards after the "
            "rollout; set it to False",
        )
    if model.enable and reward.custom_reward_function.path is None:
        raise ConfigError(
            "reward.custom_reward_function.path",
            None,
            "verl's agent loops cannot read the score of a reward model alone, which comes without further metrics; "
            "name a reward function that asks the model (its argument reward_router_address) and returns a dict",
        )
    if model.enable_resource_pool and not model.enable:
        raise ConfigError(
            "reward.reward_model.enable_resource_pool",
            True,
            "would reserve GPUs for nothing: reward.reward_model.enable=False; set both or neither",
        )
    if reward.num_workers < 1:
        raise ConfigError("reward.num_workers", reward.num_workers, "must be >= 1: they compute the rewards")


def _check_overlong_penalty(config: DictConfig) -> None:
    reward = config.reward
    overlong = reward.reward_kwargs.overlong_buffer_cfg
    if not overlong.enable:
        return
    prefix = "reward.reward_kwargs."
    manager = reward.reward_manager
    if manager.source == "register" and manager.name != "dapo":
        raise ConfigError(
            prefix + "overlong_buffer_cfg.enable",
            True,
            f"is ignored by reward.reward_manager.name={manager.name}; use dapo, or disable it",
        )
    max_resp_len, max_response_length = reward.reward_kwargs.max_resp_len, config.data.max_response_length
    if max_resp_len != max_response_length:
        raise ConfigError(
            prefix + "max_resp_len",
            max_resp_len,
            f"must equal data.max_response_length={max_response_length}, where responses end",
        )
    if not 1 <= overlong.len <= max_resp_len:
        raise ConfigError(
            prefix + "overlong_buffer_cfg.len",
            overlong.len,
            f"must be in 1..{max_resp_len}; set overlong_buffer_cfg.enable=False to disable",
        )
    if overlong.penalty_factor <= 0:
        raise ConfigError(prefix + "overlong_buffer_cfg.penalty_factor", overlong.penalty_factor, "must be > 0")
