"""How many calls an actor takes at once: what waits in one must never keep out what would end the wait."""

# Of the coordinator, the load balancer and agent loop workers: every lane may wait for a group, every request for a
# server, every trajectory for a call of another worker, and no release and no round may queue behind them.
MAX_PENDING_CALLS = 100_000

# verl gives a vLLM server actor its engine's sequences and some calls more, but at least so many.
_CONTROL_CALLS, _LEAST_SERVER_CALLS = 16, 1000


def server_calls(max_num_seqs: int) -> int:
    """Concurrent calls of a vLLM server actor [calls]; weight updates and the stop wait behind what is beyond."""
    return max(_LEAST_SERVER_CALLS, max_num_seqs + _CONTROL_CALLS)
