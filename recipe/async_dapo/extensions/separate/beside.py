"""What a separate engine's GPU holds beside the engine's share of it, `gpu_memory_utilization`.

Weights arrive while the KV cache is mapped: what has no room then would fail at the first update, minutes after the
start.
"""

from dataclasses import dataclass

CONTEXT_BYTES = 0.5e9  # CUDA's, of the process that brings weights
GRAPH_BYTES = 2e9  # CUDA graphs, which vLLM's second model runner does not count
BUCKET_MB = 256  # as large as those that arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideEngine:
    """
    Args:
        bucket_mb: of a transfer [MiB].
        largest_bytes: of a weight, as it is sent: larger than a bucket, it travels whole, in memory of its own.
        has_graphs: the engine captures CUDA graphs.
    """

    bucket_mb: int
    largest_bytes: float
    has_graphs: bool

    @property
    def bytes(self) -> float:
        bucket_bytes = self.bucket_mb * 2**20
        whole_bytes = self.largest_bytes if self.largest_bytes > bucket_bytes else 0.0
        return CONTEXT_BYTES + GRAPH_BYTES * self.has_graphs + bucket_bytes + whole_bytes

    def most_utilization(self, memory_bytes: float) -> float:
        """Of an engine on a GPU of this size."""
        return 1 - self.bytes / memory_bytes
