"""Options of the small runs on virtual time."""

from typing import Any

import pytest

from recipe.async_dapo.config.options import AsyncDAPOConfig, CallsConfig, FilterConfig, Selection
from recipe.async_dapo.config.values import Auto, Placement, RolloutStrategy, SelectBy
from recipe.async_dapo.core.stop_rules import StopRuleName

from .scripted_reward import reward_options

STRATEGIES = pytest.mark.parametrize("strategy", list(RolloutStrategy))

MAX_LENGTH_TOK = 1000
AUTO = {  # a run that sizes itself
    "rollout_pool_size": Auto.AUTO,
    "over_sampling_batch_size": Auto.AUTO,
    "max_loads_per_server": None,
    "rollout_strategy": RolloutStrategy.PARTIAL,
    "stop_rule": StopRuleName.FIRST_COMPLETED,
    "target_valid_groups": 8,
}


def options(**changes: Any) -> AsyncDAPOConfig:
    """A small run: 2 valid groups of 3 trajectories a step, from 5 prompts, on 2 workers with 2 lanes each."""
    defaults: dict[str, Any] = {
        "target_valid_groups": 2,
        "rollout_n": 3,
        "num_workers": 2,
        "placement": Placement.COLOCATED,
        "max_concurrent_prompts": 2,
        "max_loads_per_server": 3,
        "over_sampling_batch_size": 5,
        "stop_rule": StopRuleName.FIFO,
        "rollout_strategy": RolloutStrategy.DISCARD,
        "max_staleness": None,
        "max_partial_share": None,
        "rollout_pool_size": None,
        "max_prompt_length": 2,
        "max_response_length": MAX_LENGTH_TOK,
        "max_tokens_per_round": None,
        "importance_sampling": None,
        "reward": reward_options(),
        "calls": CallsConfig(timeout_s=3600.0, check=None, short_s=1.0, journal_limit_mb=1),
        "reward_function": "compute_score of reward.py",
        "filter": FilterConfig(metric="acc", max_num_gen_batches=0),
        "selection": Selection(by=SelectBy.UNIFORM),
        "sources": None,
        "round_timeout_s": 7200.0,
        "engine_timeout_s": 60.0,
        "delivery_tok": 4,
        "drafts": None,
        "host_kv_gib": None,
        "report_dir": None,
        "recorder": None,
    }
    return AsyncDAPOConfig(**(defaults | changes))
