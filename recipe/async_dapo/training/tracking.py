"""What a run tells of a step: to what judges the policy, and of what is in flight."""

import logging
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ..config.options import AsyncDAPOConfig
from ..core.mix import Mix
from ..core.over_sampling import RoundSize
from ..core.policy_health import PolicyHealth
from ..engines.load_balancer import LoadBalancerStats
from ..record import keys

logger = logging.getLogger(__name__)


class HealthLog:
    """Shows each trained step to what judges the policy."""

    def __init__(self, health: PolicyHealth) -> None:
        self._health = health

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if keys.STEP_S in data:
            self._health.observe(step, {key: float(value) for key, value in data.items() if isinstance(value, Real)})


def log_concurrency(
    step: int, balancer: LoadBalancerStats, options: AsyncDAPOConfig, mix: Mix, size: RoundSize
) -> None:
    """What may be in flight next, and why."""
    limits: dict[str, int] = {}  # on trajectories in flight in the next round, by option name
    if options.rollout_pool_size is None:
        limits["max_concurrent_prompts"] = options.slots_hold
    elif options.fixed_pool_size is not None:
        limits["rollout_pool_size"] = options.fixed_pool_size
    elif (bound := size.staleness_bound(mix.over_sampling.valid_share)) is not None:
        limits["max_staleness"] = bound
    limits["engines"] = int(balancer.concurrency["capacity"])
    held_by = "max_partial_share" if mix.over_sampling.holds_less else "over_sampling_batch_size"
    limits[held_by] = mix.groups_to_hold * options.rollout_n
    least, figures = min(limits, key=limits.__getitem__), balancer.concurrency
    logger.info(
        f"step {step}: {balancer.inflight_max} in flight; next: at most {limits[least]} by {least} "
        f"({', '.join(f'{name} {most}' for name, most in limits.items())}; engines: {balancer.concurrency_reason}, "
        f"{figures['kv_share']:.2f} of the KV cache at {figures['context_tok']:.0f} tokens a request, "
        f"steered {figures['steered']:.0f} times)"
    )
