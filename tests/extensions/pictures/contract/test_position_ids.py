"""verl's and TransferQueue's own functions on position ids of pictures: rows of any lengths reach the engine whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager
from verl.utils.tensordict_utils import chunk_tensordict, index_select_tensor_dict, maybe_fix_3d_position_ids

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.extensions.pictures.position_ids import PositionsTrainingWorker, ragged_in_tokens
from recipe.async_dapo.weights.sender import policy_worker


def batch_of(lengths: list[int]) -> tuple[list[torch.Tensor], TensorDict]:
    rows = list(torch.arange(4 * sum(lengths)).reshape(4, -1).split(lengths, dim=1))
    packed = AsyncSimpleStorageManager._pack_field_values(rows)
    return rows, TensorDict({"position_ids": packed}, batch_size=len(rows))


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_given_rows_of_any_lengths_when_verl_cuts_them_then_every_row_is_whole(lengths):
    rows, data = batch_of(lengths)
    data = ragged_in_tokens(data)
    maybe_fix_3d_position_ids(data)
    parts = chunk_tensordict(data, len(rows))
    chosen = index_select_tensor_dict(data, list(range(len(rows))))
    for index, row in enumerate(rows):
        assert torch.equal(parts[index]["position_ids"].values(), row)
    assert torch.equal(chosen["position_ids"].values(), torch.cat(rows, dim=1))


def test_given_equal_lengths_when_verl_alone_cuts_them_then_it_fails():
    """`PositionsTrainingWorker` goes the day that verl cuts them right."""
    _, data = batch_of([5, 5, 5, 5])
    maybe_fix_3d_position_ids(data)
    with pytest.raises(RuntimeError, match="must match the size"):
        chunk_tensordict(data, 2)


def test_given_a_run_with_pictures_then_workers_of_policies_read_positions_this_way():
    assert PositionsTrainingWorker in policy_worker({"extensions": [*declared()]}).mro()
    assert PositionsTrainingWorker not in policy_worker({"extensions": []}).mro()
