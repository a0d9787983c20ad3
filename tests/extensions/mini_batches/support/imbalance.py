"""How unequal the work of training ranks is."""

from collections.abc import Sequence


def imbalance(order: Sequence[int], work: Sequence[int], *, ranks: int, rows: int) -> list[float]:
    """Of each update: the most work of a rank over the mean, at least 1. All ranks wait for that one."""
    per_rank, per_cell = len(order) // ranks, rows // ranks
    found = []
    for first in range(0, per_rank, per_cell):
        sums = [sum(work[i] for i in order[rank * per_rank + first :][:per_cell]) for rank in range(ranks)]
        found.append(max(sums) * ranks / sum(sums))
    return found
