"""How the Hydra node `async_dapo` becomes options: defaults that depend on others, verl's numbers, what does not go
together.
"""

from dataclasses import replace
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from ..core.stop_rules import StopRuleName
from .extensions import check_in_copy, chosen, declared
from .values import (
    ConfigError,
    Count,
    ImportanceSampling,
    Options,
    RolloutStrategy,
    Rule,
    check_rules,
    number,
    parse_options,
)

# What an extension that calls the reward function in verl's stead says of it: `in_words`, `waits_in_line`.
CALLED = "reward.custom_reward_function.reward_kwargs.isolated"

# What does not go together, for the planner too. Facts are the options.
# fmt: off
TOGETHER = (
    Rule("algorithm.filter_groups.metric", lambda it: it.filter.metric == "",
         "name a metric of the reward function's result, such as acc, or set algorithm.filter_groups.enable=False"),
    Rule("actor_rollout_ref.rollout.n", lambda it: it.filter.metric is not None and it.rollout_n == 1,
         "a group of one never varies: the filter drops all; set n >= 2, or algorithm.filter_groups.enable=False"),
    Rule("async_dapo.max_tokens_per_round",
         lambda it: it.max_tokens_per_round is not None
         and (it.rollout_strategy is not RolloutStrategy.PARTIAL or not it.keeps_tokens),
         "async_dapo.rollout_strategy={it.rollout_strategy} with async_dapo.max_staleness={it.max_staleness} cannot "
         "set a trajectory aside; choose partial with max_staleness=1 or more, or leave it null"),
)
# fmt: on

# Fields of `AsyncDAPOConfig` that are numbers of verl's, each >= 1.
OF_VERL = {
    "target_valid_groups": "data.train_batch_size",  # B
    "rollout_n": "actor_rollout_ref.rollout.n",
    "num_workers": "actor_rollout_ref.rollout.agent.num_workers",
    "max_prompt_length": "data.max_prompt_length",
    "max_response_length": "data.max_response_length",
}


def read_options(kind: type[Options], config: DictConfig, **parts: Any) -> Options:
    """Parse and validate; see `AsyncDAPOConfig.from_hydra`.

    Args:
        kind: `AsyncDAPOConfig`.
        parts: those of its fields that are made of verl's options.
    """
    node = cast(dict[str, Any], OmegaConf.to_container(config.async_dapo, resolve=True))
    for name in node.keys() & {*OF_VERL, "filter", "reward_function"}:
        raise ConfigError(f"async_dapo.{name}", node[name], "no option of this recipe; set verl's")
    if node.get("stop_rule") is None:
        keeps_nothing = node.get("rollout_strategy") == RolloutStrategy.DISCARD or node.get("max_staleness") == 0
        node["stop_rule"] = StopRuleName.FIFO if keeps_nothing else StopRuleName.FIRST_COMPLETED
    if node.get("importance_sampling") is None:
        bypasses = OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode")
        node["importance_sampling"] = ImportanceSampling.BYPASS if bypasses else ImportanceSampling.DECOUPLED
    node |= {name: number(config, key, Count) for name, key in OF_VERL.items()}
    node |= parts | {"reward_function": _reward_function(config)}
    parsed: Any = parse_options(kind, node, "async_dapo.")
    check_in_copy(config)
    check_rules([*TOGETHER, *(row for one in declared().values() for row in one.together)], parsed, config)
    reward = replace(parsed.reward, waits_in_line=bool(OmegaConf.select(config, f"{CALLED}.waits_in_line")))
    options: Options = replace(parsed, reward=reward, extensions=tuple(chosen(config)))
    return options


def _reward_function(config: DictConfig) -> str:
    """The user's function, also where an extension has put its own in that place."""
    custom = "reward.custom_reward_function"
    path, name = (OmegaConf.select(config, f"{custom}.{part}") for part in ("path", "name"))
    own = "default_compute_score of pkg://verl.utils.reward_score" if path is None else f"{name} of {path}"
    return OmegaConf.select(config, f"{CALLED}.in_words") or own
