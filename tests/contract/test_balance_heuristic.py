"""Room for snapshots, and which forward passes the balance heuristic asks the training workers for."""

import pytest
from transfer_queue import KVBatchMeta

from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.training.balance_heuristic import check_room, members_by_group
from recipe.async_dapo.weights.snapshots import SnapshotRoom


def rank(node: str, *, available_bytes: int, optimizer_bytes: int = 0) -> SnapshotRoom:
    return SnapshotRoom(
        node=node,
        snapshot_bytes=10,
        newest_bytes=20,
        optimizer_bytes=optimizer_bytes,
        available_bytes=available_bytes,
    )


def test_snapshots_that_a_node_has_no_room_for_are_refused_with_what_they_take() -> None:
    ranks = [rank("a", available_bytes=120), rank("a", available_bytes=125), rank("b", available_bytes=60)]
    check_room(ranks, snapshots=4)
    with pytest.raises(
        ConfigError, match=r"balance: 5 earlier versions of the weights take .* lower async_dapo\.max_sta"
    ):
        check_room(ranks, snapshots=5)


def test_room_is_left_for_what_the_optimizer_of_every_rank_of_a_node_will_take() -> None:
    ranks = [rank("a", available_bytes=200, optimizer_bytes=40), rank("a", available_bytes=200, optimizer_bytes=40)]
    check_room(ranks, snapshots=4)
    with pytest.raises(ConfigError, match=r"with 0\.0 GB free beside the optimizer's state"):
        check_room(ranks, snapshots=5)


def test_a_group_s_members_are_those_of_a_prompt_and_an_output_without_padding() -> None:
    keys = ["a_0_0", "b_0_0", "a_1_0", "a_1_1", "pad_0_0"]
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=tags)
    assert members_by_group(batch) == {"a_0": [0, 2], "b_0": [1], "a_1": [3]}
