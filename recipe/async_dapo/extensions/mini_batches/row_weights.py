"""A trajectory of several rows, as that of an agent with sub-agents, weighs in the loss what one of one row does.

    actor.loss_agg_mode         verl takes of an update                  here
    token-mean, token-sum       a mean, or a sum, over its tokens        the same
    seq-mean-token-sum(-norm)   the sum of its tokens, by its rows       by its trajectories
    seq-mean-token-mean         the mean over the means of its rows      over those of its trajectories

The loss `sapo` always takes the last, whatever the mode. A step of one row a trajectory is verl's own.

What is weighted is the gradient, where it leaves the loss for the model's log-probs and entropies: so it is right for
all parts of a loss that verl aggregates in the same way. Where `sapo` is set with another mode than
`seq-mean-token-mean`, entropy and KL are weighted as the loss is, though verl aggregates them by that mode. The loss
that is logged counts each row once. The ratio of `gspo` is that of a row: a sequence that was sampled for its prompt.
"""

from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from ... import store
from .trajectories import row_weights, trajectory_of

FIELD = "row_weights"
_MEANS = "seq-mean-token-mean"
_COUNTS_ROWS = ("seq-mean-token-sum", "seq-mean-token-sum-norm", _MEANS)
_ALWAYS_MEANS = "sapo"  # a loss mode


def counts_rows(config: DictConfig) -> bool:
    """Whether verl's loss gives each row the same share."""
    actor = config.actor_rollout_ref.actor
    return actor.loss_agg_mode in _COUNTS_ROWS or actor.policy_loss.loss_mode == _ALWAYS_MEANS


def weigh_rows(batch: KVBatchMeta, config: DictConfig) -> None:
    """Leave for the loss what each row weighs, if there are trajectories of several. What `bypass` rejects within the
    loss (`rollout_rs`) still counts among a row's tokens here.
    """
    own = [row for row, tag in enumerate(batch.tags) if not store.is_padding(tag)]
    keys = [batch.keys[row] for row in own]
    if not counts_rows(config) or len({*map(trajectory_of, keys)}) == len(keys):
        return
    masks = store.read_fields(batch, ["response_mask"])["response_mask"]
    actor = config.actor_rollout_ref.actor
    takes_means = actor.loss_agg_mode == _MEANS or actor.policy_loss.loss_mode == _ALWAYS_MEANS
    tokens = [int(masks[row].sum()) for row in own]
    weights = torch.ones(len(batch))
    weights[own] = torch.tensor(row_weights(keys, tokens, count=len(batch), takes_means=takes_means))
    store.write_field(batch, FIELD, weights.split(1))


def weighted(loss: Any) -> Any:
    """A loss of verl's form, in which rows weigh what `weigh_rows` has left."""
    return partial(_loss, loss)


def _loss(loss: Any, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None) -> Any:
    if FIELD in data:
        weights_B = data[FIELD].values()
        outputs = {name: model_output[name] for name in ("log_probs", "entropy") if model_output.get(name) is not None}
        model_output = model_output | {name: _with_weights(each, weights_B) for name, each in outputs.items()}
    return loss(model_output=model_output, data=data, dp_group=dp_group)


def _with_weights(output: torch.Tensor, weights_B: torch.Tensor) -> torch.Tensor:
    """The same values, [B, T] nested, whose gradient is multiplied."""
    values_N, offsets = output.values(), output.offsets()
    weights_N = weights_B.to(values_N).repeat_interleave(offsets.diff())
    values_N = values_N.view_as(values_N)
    if values_N.requires_grad:
        values_N.register_hook(lambda gradient_N: gradient_N * weights_N)
    return torch.nested.nested_tensor_from_jagged(values_N, offsets)
