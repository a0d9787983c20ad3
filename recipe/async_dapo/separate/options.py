"""What the recipe's options say of engines on GPUs of their own."""

from typing import Any

from ..config import AsyncDAPOConfig
from ..option_values import RolloutStrategy


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
