"""Why a step cannot have enough valid groups: errors that name the cause and the remedy."""

from collections.abc import Iterable
from fractions import Fraction

from ..config.options import AsyncDAPOConfig
from ..config.values import ConfigError
from ..core.failures import EndedGroups
from ..core.mix import ALL
from ..rollout.manager import AsyncDAPOAgentLoopManager
from .observer import Observer


def check_part(
    part: str,
    batches: Fraction | int,
    manager: AsyncDAPOAgentLoopManager,
    options: AsyncDAPOConfig,
    observers: Iterable[Observer],
) -> None:
    """See that more prompts may be drawn of a part of the mix.

    Args:
        batches: that have been drawn of it in this step [batches of prompts].
        manager: of the open round.

    Raises:
        ConfigError: where no more may be drawn of it in this step.
        RuntimeError: where hardly a group of it can be complete, whatever others do.
    """
    ended: EndedGroups = manager.ask("count_ended", part)
    if ended.is_hopeless(options.target_valid_groups):
        raise too_many_failures(ended, options)
    if ended.are_hardly_any(options.target_valid_groups):
        raise too_many_set_aside(ended, options)
    limit = options.filter.max_num_gen_batches
    if limit and batches >= limit:
        of_all: EndedGroups = manager.ask("count_ended")
        share = of_all.valid / max(1, of_all.num_scored)
        why = next(filter(None, (one.why_few_valid(share) for one in observers)), None)
        raise too_many_batches(ended, options, why, part)


def too_many_failures(ended: EndedGroups, options: AsyncDAPOConfig) -> RuntimeError:
    """So many trajectories fail that further prompts would only be used up."""
    scored, failed = ended.scored_trajectories, ended.failed_trajectories
    return RuntimeError(
        f"{failed} of {scored + failed} trajectories failed, and each ends a group of rollout.n={options.rollout_n}: "
        f"groups ended as {ended}. {_cause(ended, options)}"
    )


def too_many_batches(
    ended: EndedGroups, options: AsyncDAPOConfig, why: str | None = None, part: str = ALL
) -> ConfigError:
    """`max_num_gen_batches` is reached.

    Args:
        why: what an extension says of it, with the remedy.
        part: of the mix, whose groups are too few.
    """
    limit = options.filter.max_num_gen_batches
    if ended.num_failed > max(ended.filtered, ended.set_aside):
        cause = _cause(ended, options)
    elif ended.set_aside > ended.filtered:
        cause = f"async_dapo.max_tokens_per_round={options.max_tokens_per_round} ends too few groups; raise it"
    elif why is not None:
        cause = why
    else:
        cause = "the task is too easy, too hard, or the reward is constant"
        cause += "; raise the limit (0 = none) or change the data"
    whose = f"of the data source {part!r}, it " if part != ALL else ""
    wanted = f"{options.target_valid_groups}" if part == ALL else "its share of"
    return ConfigError(
        "algorithm.filter_groups.max_num_gen_batches",
        limit,
        f"{whose}drew {limit} batches and still has fewer than {wanted} valid groups; groups ended as {ended}: {cause}",
    )


def too_many_set_aside(ended: EndedGroups, options: AsyncDAPOConfig) -> ConfigError:
    """Hardly a group ends within a round: further prompts would only be set aside, too."""
    return ConfigError(
        "async_dapo.max_tokens_per_round",
        options.max_tokens_per_round,
        f"ends too few groups of rollout.n={options.rollout_n} in a round: groups ended as {ended}; raise it",
    )


def _cause(ended: EndedGroups, options: AsyncDAPOConfig) -> str:
    """What most of the failed groups failed of, with file and line, and the remedy."""
    function, timeout_s = options.reward_function, options.reward.timeout_s
    what = f" {ended.main_cause}" if ended.main_cause else ""
    match ended.main_reason:
        case "reward_timeout":
            return (
                f"The reward function, {function}, gave no answer within async_dapo.reward.timeout_s={timeout_s}: make "
                "it faster or raise the limit"
            )
        case "reward_error":
            return f"The reward function, {function}, raised or ended its process:{what}; correct it"
        case "reward_not_finite":
            return f"The reward function, {function}, returned no finite number:{what}; correct it"
    return f"The agent loop, a tool or the engine refused the prompts:{what}; correct it"
