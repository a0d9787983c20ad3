"""Which trajectories make a mini-batch, which training rank gets which of them, and what each of their rows weighs."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

Partition = Callable[[Sequence[int], int], Sequence[Sequence[int]]]


def trajectory_of(key: str) -> str:
    """The name of a row's trajectory: that of the row without its number."""
    return key.rpartition("_")[0] or key


def cuts_of(keys: Iterable[str], updates: int) -> list[int]:
    """Where rows in the order of their names are cut into mini-batches of as many trajectories, each of them whole: a
    trajectory of several rows, as that of an agent with sub-agents, must not be in two updates.
    """
    rows = Counter(map(trajectory_of, sorted(keys)))
    ends = [0, *accumulate(rows.values())]
    return [ends[len(rows) * update // updates] for update in range(updates + 1)]


def most_rows(keys: Iterable[str], updates: int) -> int:
    """Rows of the largest of these mini-batches."""
    return max(end - first for first, end in pairwise(cuts_of(keys, updates)))


def row_weights(keys: Sequence[str], tokens: Sequence[int], *, count: int, takes_means: bool) -> list[float]:
    """What the loss of each row has to be multiplied with, for a trajectory to weigh the same in however many rows.

    verl divides by the rows of an update where trajectories are meant. Where it takes the mean over a row's tokens, the
    mean over those of its trajectory is meant.

    Args:
        keys: names of the rows, without padding.
        tokens: of each row that are in the loss.
        count: rows of the batch, padding included.
        takes_means: over the tokens of a row; else their sum is taken.
    """
    names = [*map(trajectory_of, keys)]
    of_trajectory = Counter[str]()
    for name, row_tok in zip(names, tokens, strict=True):
        of_trajectory[name] += row_tok
    share = count / len(of_trajectory)
    if not takes_means:
        return [share] * len(names)
    return [share * row_tok / max(1, of_trajectory[name]) for name, row_tok in zip(names, tokens, strict=True)]


def balanced_order(
    keys: Sequence[str], work: Sequence[int], padding: Sequence[bool], *, ranks: int, rows: int, partition: Partition
) -> list[int]:
    """The order in which training ranks have equal work in every mini-batch, and in all of them together.

    Each rank takes an equal part of the batch, from the front, and cuts it into mini-batches in that order. Which ones
    are in a mini-batch goes by names, which say nothing of length or age; those of a prompt group stay together. Every
    mini-batch has as many trajectories that are no padding: one that had few would move the model as far as the others.

    Args:
        keys: names of the rows, in which the group's comes first, and the trajectory's next.
        work: of each row.
        padding: whether it is padding, with which the batch was filled up.
        rows: of a mini-batch over all ranks, padding included; a multiple of `ranks`, which divides the batch.
        partition: of such work into parts of one size, whose sums are as equal as can be: the indices of each part.
    """
    by_name = [i for i in sorted(range(len(keys)), key=keys.__getitem__) if not padding[i]]
    fillers = [i for i in range(len(keys)) if padding[i]]
    updates = len(keys) // rows
    cuts = cuts_of((keys[i] for i in by_name), updates)
    of_rank: list[list[int]] = [[] for _ in range(ranks)]
    done = [0] * ranks
    for first, end in pairwise(cuts):
        mini = by_name[first:end]
        mini += [fillers.pop() for _ in range(rows - len(mini))]
        parts = [[mini[i] for i in part] for part in partition([work[i] for i in mini], ranks)]
        sums = [sum(work[i] for i in part) for part in parts]
        heaviest_first = sorted(range(ranks), key=lambda part: -sums[part])
        least_first = sorted(range(ranks), key=done.__getitem__)
        for rank, part in zip(least_first, heaviest_first, strict=True):
            of_rank[rank] += parts[part]
            done[rank] += sums[part]
    return [i for part in of_rank for i in part]
