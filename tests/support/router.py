"""The load balancer's options, as a run would write them."""

from typing import Any

FREE = {"pool_size": None, "sizes_itself": False, "first_context_tok": 1, "gathers_groups": False, "keeps_kv": False}


def router_options(max_per_server: int, **changes: Any) -> dict[str, Any]:
    """No limit but the servers' own, requests that are aborted at a stop, and an hour to obey.

    Args:
        changes: of these, or of the arguments of `Balance`.
    """
    balance = {"max_per_server": max_per_server, **FREE}
    balance |= {name: changes.pop(name) for name in FREE if name in changes}
    return {"balance": balance, "engine_timeout_s": 3600.0, **changes}
