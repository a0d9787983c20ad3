"""Position ids of pictures, three axes and text a token, as verl's training engines read them."""

import torch
from tensordict import TensorDict
from verl.utils.tensordict_utils import nested_tensor_from_tensor_list
from verl.workers.engine_workers import TrainingWorker

_NAME = "position_ids"
_TOKENS = 2  # their dimension in [B, 4, T]


class PositionsTrainingWorker(TrainingWorker):
    """verl's worker of one model. It labels dimension 2 as the ragged one, whichever it is."""

    def infer_batch(self, data: TensorDict) -> TensorDict:
        return super().infer_batch(ragged_in_tokens(data))

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        return super().train_mini_batch(ragged_in_tokens(data))


def ragged_in_tokens(data: TensorDict) -> TensorDict:
    """Nest position ids of three dimensions anew if the ragged one is not that of tokens.

    torch takes the first dimension where all rows are equally long, as a rank's only row is.
    """
    positions = data.get(_NAME, None)
    has_axes = isinstance(positions, torch.Tensor) and positions.is_nested and positions.dim() == 3
    if has_axes and positions._ragged_idx != _TOKENS:
        data[_NAME] = nested_tensor_from_tensor_list(list(positions.unbind()), ragged_idx=_TOKENS)
    return data
