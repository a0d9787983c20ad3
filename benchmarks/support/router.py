"""The load balancer's options, as a run would write them."""

from typing import Any

FREE = {"pool_size": None, "sizes_itself": False, "first_context_tok": 1, "limit_tok": 1, "keeps_siblings": False}


def router_options(max_loads_per_server: int, **changes: Any) -> dict[str, Any]:
    """No limit but the servers' own, requests that are aborted at a stop, and an hour to obey."""
    options = {"max_loads_per_server": max_loads_per_server, "pause_mode": "abort", "engine_timeout_s": 3600.0}
    return options | FREE | changes
