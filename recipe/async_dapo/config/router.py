"""What the load balancer is made of: options in the router yaml, which the planner reads, too."""

from typing import Any

from ..core.leases import Balance
from .options import AsyncDAPOConfig
from .values import Auto, Drafts


def router_options(options: AsyncDAPOConfig, *, most_per_server: int) -> dict[str, Any]:
    """The options of `GlobalLoadBalancer`.

    Args:
        most_per_server: where `max_loads_per_server` does not say [requests].
    """
    return {
        "balance": {
            "max_per_server": options.max_loads_per_server or most_per_server,
            "pool_size": options.fixed_pool_size,
            "sizes_itself": options.rollout_pool_size is Auto.AUTO,
            "first_context_tok": first_context_tok(options),
            "gathers_groups": options.drafts is Drafts.SUFFIX,
            "keeps_kv": options.host_kv_gib is not None,
        },
        "engine_timeout_s": options.engine_timeout_s,
    }


def balance_of(options: AsyncDAPOConfig, *, most_per_server: int) -> Balance:
    """What the load balancer decides by; arguments as of `router_options`."""
    return Balance(**router_options(options, most_per_server=most_per_server)["balance"])


def first_context_tok(options: AsyncDAPOConfig) -> int:
    """What a request is expected to take of the KV cache before any has been seen [tokens]."""
    return max(1, options.max_prompt_length + options.max_response_length // 2)
