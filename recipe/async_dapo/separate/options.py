"""What the recipe's options say of engines on GPUs of their own."""

from typing import Any

from ..config import AsyncDAPOConfig
from ..option_values import RolloutStrategy
from .rolling_round import RollingSpec


def rolling_update(options: AsyncDAPOConfig) -> dict[str, Any]:
    """What `RollingLoadBalancer` needs beside `AsyncDAPOConfig.load_balancer`. An engine that is behind by more than
    `max_staleness` takes no further requests, with `consistent` by half of that: what it has would grow too old.
    """
    drains = options.rollout_strategy is RolloutStrategy.CONSISTENT
    most = options.max_staleness
    return {
        "drains": drains,
        "max_lag": most // 2 if drains and most is not None else most,
        "pause_mode": "hold" if options.keeps_kv else "abort",
    }


def rolling_spec(
    options: AsyncDAPOConfig,
    *,
    opened_at: int,
    step: int,
    carried: tuple[tuple[str, int], ...],
    pool_size: int | None,
    most_unfinished: int | None,
    most_begun: int,
    counted_share: float,
) -> RollingSpec:
    """The round that goes on from the step that it was opened at, as from this step on."""
    return RollingSpec(
        round_id=f"from-step-{opened_at}",
        stop_rule=options.stop_rule,
        target_valid_groups=options.target_valid_groups,
        carried_valid_groups=len(carried),
        drains=options.drains,
        pool_size=pool_size,
        most_unfinished=most_unfinished,
        counted_share=counted_share,
        step=step,
        max_staleness=options.max_staleness,
        carried=carried,
        most_begun=most_begun,
    )
