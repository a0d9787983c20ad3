"""Mini-batches over several training ranks: whole groups by name, the same rows whatever the lengths and ranks, and
equal work at each update.
"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.extensions.mini_batches.trajectories import balanced_order, most_rows, trajectory_of
from recipe.async_dapo.training.step_updates import rows_of_updates

from ..support.imbalance import imbalance


def in_turns(work: Sequence[int], parts: int) -> list[list[int]]:
    """The heaviest row goes to the part with the least so far that still has a place."""
    found: list[list[int]] = [[] for _ in range(parts)]
    for row in sorted(range(len(work)), key=lambda row: -work[row]):
        open_ones = [part for part in found if len(part) < len(work) // parts]
        min(open_ones, key=lambda part: sum(work[i] for i in part)).append(row)
    return found


def updates_of(order: Sequence[int], *, ranks: int, rows: int) -> list[set[int]]:
    """The rows of each update."""
    return [{order[place] for place in update} for update in rows_of_updates(len(order), ranks=ranks, rows=rows)]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.randoms(use_true_random=False))
def test_an_update_has_whole_groups_by_name_whatever_the_lengths_and_the_ranks(
    ranks: int, updates: int, groups: int, share: int, draw: random.Random
) -> None:
    n = ranks * share
    keys = [f"{group:02x}_{member}_0" for group in range(updates * groups) for member in range(n)]
    draw.shuffle(keys)
    work = [draw.randint(1, 10_000) for _ in keys]
    order = balanced_order(keys, work, [False] * len(keys), ranks=ranks, rows=groups * n, partition=in_turns)
    assert sorted(order) == list(range(len(keys)))
    names = [{keys[row] for row in update} for update in updates_of(order, ranks=ranks, rows=groups * n)]
    by_name = sorted(keys)
    assert names == [set(by_name[first : first + groups * n]) for first in range(0, len(keys), groups * n)]
    assert all(1.0 <= value <= ranks for value in imbalance(order, work, ranks=ranks, rows=groups * n))


def test_a_rank_with_more_work_in_one_update_has_less_in_the_next() -> None:
    keys = [f"{group}_{member}_0" for group in "abcd" for member in range(2)]
    work = [9, 1, 9, 1, 7, 3, 7, 3]
    order = balanced_order(keys, work, [False] * 8, ranks=2, rows=2, partition=in_turns)
    own = [sum(work[row] for row in part) for part in (order[:4], order[4:])]
    assert own == [20, 20] and imbalance(order, work, ranks=2, rows=2) == pytest.approx([1.8, 1.8, 1.4, 1.4])


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.data())
def test_padding_is_dealt_out_evenly(ranks: int, updates: int, share: int, data: st.DataObject) -> None:
    """Loops of several outputs leave a few rows beyond whole mini-batches, which verl fills up."""
    rows = ranks * share
    count = data.draw(st.integers(1, updates * rows))
    padding = [False] * count + [True] * (updates * rows - count)
    keys = [f"pad_{row:03d}" if is_padding else f"{row:03d}" for row, is_padding in enumerate(padding)]
    order = balanced_order(keys, [1] * len(keys), padding, ranks=ranks, rows=rows, partition=in_turns)
    assert sorted(order) == list(range(len(keys)))
    real = [sum(not padding[row] for row in update) for update in updates_of(order, ranks=ranks, rows=rows)]
    assert max(real) - min(real) <= 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_trajectories_of_several_rows_are_whole_in_one_update_of_as_many_trajectories(
    ranks: int, updates: int, trajectories: int, draw: random.Random
) -> None:
    own = [draw.randint(1, 4) for _ in range(updates * trajectories)]
    keys = [f"{number:03d}_0_{row}" for number, count in enumerate(own) for row in range(count)]
    rows = -(-most_rows(keys, updates) // ranks) * ranks
    padding = [False] * len(keys) + [True] * (updates * rows - len(keys))
    keys += [f"pad{row}_0_0" for row in range(len(padding) - len(keys))]
    order = balanced_order(keys, [1] * len(keys), padding, ranks=ranks, rows=rows, partition=in_turns)
    assert sorted(order) == list(range(len(keys)))
    found = [
        {trajectory_of(keys[row]) for row in update if not padding[row]}
        for update in updates_of(order, ranks=ranks, rows=rows)
    ]
    assert [len(names) for names in found] == [trajectories] * updates
    assert len(set().union(*found)) == updates * trajectories, "none is in two updates"
