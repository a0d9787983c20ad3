"""The range of every option, and options that do not go together."""

from typing import TYPE_CHECKING

from .values import ConfigError, RolloutStrategy

if TYPE_CHECKING:
    from ..config import AsyncDAPOConfig


def check_ranges(options: "AsyncDAPOConfig") -> None:
    """
    Raises:
        ConfigError: naming key, value and remedy.
    """
    _check_counts(options)
    _check_seconds(options)
    _check_staleness(options)
    _check_filter(options)
    _check_screening(options)
    _check_selection(options)


def _check_counts(options: "AsyncDAPOConfig") -> None:
    at_least_one = {
        "data.train_batch_size": options.target_valid_groups,
        "actor_rollout_ref.rollout.n": options.rollout_n,
        "actor_rollout_ref.rollout.agent.num_workers": options.num_workers,
        "async_dapo.max_concurrent_prompts": options.max_concurrent_prompts,
        "data.max_prompt_length": options.max_prompt_length,
        "data.max_response_length": options.max_response_length,
        "async_dapo.length_bias_window": options.length_bias_window,
        "async_dapo.delivery_tok": options.delivery_tok,
        "async_dapo.calls.journal_limit_mb": options.calls.journal_limit_mb,
    }
    optional = {
        "async_dapo.rollout_pool_size": options.rollout_pool_size,
        "async_dapo.over_sampling_batch_size": options.over_sampling_batch_size,
        "async_dapo.max_loads_per_server": options.max_loads_per_server,
        "async_dapo.max_tokens_per_round": options.max_tokens_per_round,
    }
    at_least_one |= {key: value for key, value in optional.items() if isinstance(value, int)}
    for key, value in at_least_one.items():
        if value < 1:
            raise ConfigError(key, value, "must be >= 1")
    for key, count in {
        "async_dapo.reward.max_retries": options.reward.max_retries,
        "async_dapo.reward.processes": options.reward.processes,
        "async_dapo.calls.kept_loops": options.calls.kept_loops,
    }.items():
        if count is not None and count < 0:
            raise ConfigError(key, count, "must be >= 0")


def _check_seconds(options: "AsyncDAPOConfig") -> None:
    for key, seconds in {
        "async_dapo.reward.timeout_s": options.reward.timeout_s,
        "async_dapo.calls.timeout_s": options.calls.timeout_s,
        "async_dapo.calls.short_s": options.calls.short_s,
        "async_dapo.round_timeout_s": options.round_timeout_s,
        "async_dapo.stop_timeout_s": options.stop_timeout_s,
        "async_dapo.engine_timeout_s": options.engine_timeout_s,
        "async_dapo.weight_update_timeout_s": options.weight_update_timeout_s,
    }.items():
        if seconds <= 0:
            raise ConfigError(key, seconds, "must be > 0 seconds")
    for key, seconds in {
        "async_dapo.stop_timeout_s": options.stop_timeout_s,
        "async_dapo.weight_update_timeout_s": options.weight_update_timeout_s,
    }.items():
        if seconds <= options.engine_timeout_s:
            raise ConfigError(
                key,
                seconds,
                f"must be above async_dapo.engine_timeout_s={options.engine_timeout_s}, after which an engine that "
                "does not answer is given up, so that the others can go on",
            )


def _check_staleness(options: "AsyncDAPOConfig") -> None:
    """What is kept over a step, and how much of it."""
    if options.max_staleness is not None and options.max_staleness < 0:
        raise ConfigError("async_dapo.max_staleness", options.max_staleness, "must be >= 0; null = no limit")
    if options.max_partial_share is not None and not 0 <= options.max_partial_share <= 1:
        raise ConfigError("async_dapo.max_partial_share", options.max_partial_share, "must be in 0..1; null = no cap")
    if options.max_tokens_per_round is not None and options.rollout_strategy is not RolloutStrategy.PARTIAL:
        raise ConfigError(
            "async_dapo.max_tokens_per_round",
            options.max_tokens_per_round,
            f"does not go with async_dapo.rollout_strategy={options.rollout_strategy}, under which one that is "
            "set aside loses its tokens or KV cache, or has to end under one policy; choose "
            "async_dapo.rollout_strategy=partial or leave it null",
        )


def _check_filter(options: "AsyncDAPOConfig") -> None:
    if options.filter.max_num_gen_batches < 0:
        raise ConfigError(
            "algorithm.filter_groups.max_num_gen_batches",
            options.filter.max_num_gen_batches,
            "must be >= 0; 0 = no limit",
        )
    if options.filter.metric is not None and options.rollout_n == 1:
        raise ConfigError(
            "actor_rollout_ref.rollout.n",
            1,
            "a group of one never varies, so the filter drops every group; set n >= 2 or "
            "algorithm.filter_groups.enable=False",
        )


def _check_screening(options: "AsyncDAPOConfig") -> None:
    samples, keep_share, n = options.screening.samples, options.screening.keep_share, options.rollout_n
    if not 0 <= keep_share <= 1:
        raise ConfigError("async_dapo.screening.keep_share", keep_share, "must be in 0..1")
    if samples is None:
        return
    if options.filter.metric is None:
        raise ConfigError(
            "async_dapo.screening.samples",
            samples,
            "screening asks whether the filter's metric varies, and there is no filter; set "
            "algorithm.filter_groups.enable=True and algorithm.filter_groups.metric, or leave it null",
        )
    if not 2 <= samples < n:
        room = f"must be in 2..{n - 1}" if n > 2 else "needs actor_rollout_ref.rollout.n >= 3"
        raise ConfigError(
            "async_dapo.screening.samples",
            samples,
            f"{room}: one sample cannot differ from itself, and actor_rollout_ref.rollout.n={n} are the whole group; "
            "null = no screening",
        )


def _check_selection(options: "AsyncDAPOConfig") -> None:
    selection = options.selection
    if not 0 <= selection.forgetting <= 1:
        raise ConfigError("async_dapo.selection.forgetting", selection.forgetting, "must be in 0..1")
    if not 0 < selection.exploration <= 1:
        raise ConfigError(
            "async_dapo.selection.exploration",
            selection.exploration,
            "must be in 0..1, above 0: a prompt that is never drawn could never show that it has become useful",
        )
    if selection.defer_steps < 1:
        raise ConfigError("async_dapo.selection.defer_steps", selection.defer_steps, "must be >= 1")
    if selection.records and options.filter.metric is None:
        raise ConfigError(
            "async_dapo.selection.by",
            selection.by.value,
            "a history counts answers by the filter's metric, and there is no filter; set "
            "algorithm.filter_groups.enable=True and algorithm.filter_groups.metric, or by=uniform and "
            "history_file=null",
        )
