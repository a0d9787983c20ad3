"""An update that computes pi_prox itself, where a step has one update (`conditions.py` says where).

    r = pi_theta / pi_prox = 1, with the gradient of log pi_theta        w = min(pi_prox / mu, threshold), no gradient

The loss is verl's own, of any kind: it finds pi_prox and the weights among its data, where a pass before the update
would have left them; under bypass it finds mu. Metrics of the ratios are made of sums inside the loss, over
micro-batches and ranks.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.rollout_corr_helper import SAFETY_BOUND
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.padding import response_from_nested

from ...training.importance_sampling import importance_metrics, importance_sums

FIELD = "one_update"  # of a batch that has no old log-probs
_SUMS = "actor/one_update/"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneUpdate:
    """What the loss of such a batch has to know.

    Attributes:
        bypasses: old log-probs stay the engines', those of mu; pi_prox is for metrics alone.
        weighs: tokens are weighted; else the weights are counted only.
        threshold: the largest weight.
        newest: policy version, that of pi_prox.
    """

    bypasses: bool
    weighs: bool
    threshold: float
    newest: int


def loss_context(config: DictConfig, *, newest: int) -> OneUpdate:
    correction = config.algorithm.rollout_correction
    limit = correction.rollout_is_threshold
    upper = math.inf if limit is None else float(str(limit).rpartition("_")[2])  # of a band, which `none` only counts
    weighs = correction.rollout_is is not None and not correction.bypass_mode
    return OneUpdate(bypasses=correction.bypass_mode, weighs=weighs, threshold=upper, newest=newest)


def around(loss: Any, actor: ActorConfig) -> Any:
    """A loss of verl's form that computes pi_prox itself; for every other batch it is the one given, whose `actor` this
    is, too.
    """
    return partial(_loss, loss, actor)


def _loss(
    loss: Any, config: ActorConfig, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    context: OneUpdate | None = tu.get_non_tensor_data(data, key=FIELD, default=None)
    if context is None:
        return loss(model_output=model_output, data=data, dp_group=dp_group)
    proximal = response_from_nested(model_output["log_probs"].detach(), data["response_mask"])
    log_ratio_N, mask_N = proximal.values() - data["rollout_log_probs"].values(), data["response_mask"].values()
    weights_N = (log_ratio_N.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp() * mask_N).clamp(max=context.threshold)
    data = data.clone(recurse=False)
    if not context.bypasses:
        data["old_log_probs"] = proximal
    if context.weighs:
        data["rollout_is_weights"] = _in_rows(weights_N, proximal)
    value, metrics = loss(model_output=model_output, data=data, dp_group=dp_group)
    return value, metrics | {
        "actor/entropy": Metric(AggregationType.SUM, _entropy(config, model_output, data, proximal, weights_N)),
        **_summed(log_ratio_N, weights_N, data, context),
    }


def _in_rows(values_N: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """As a nested tensor that pads to its longest row, as one that is made of its offsets does not."""
    return torch.nested.as_nested_tensor(values_N.split(like.offsets().diff().tolist()), layout=torch.jagged)


def _entropy(
    config: ActorConfig, model_output: dict[str, Any], data: TensorDict, proximal: torch.Tensor, weights_N: torch.Tensor
) -> torch.Tensor:
    """This micro-batch's part of the entropy, averaged as verl does. It is exact where verl computes entropies, else
    estimated from the tokens that were sampled.
    """
    if (exact := model_output.get("entropy")) is not None:
        entropy = response_from_nested(exact.detach(), data["response_mask"])
    else:
        entropy = _in_rows(-proximal.values() * weights_N, proximal)
    padded = data.select("response_mask").set("entropy", entropy).to_padded_tensor()
    return agg_loss(padded["entropy"], padded["response_mask"], config.loss_agg_mode, **config.global_batch_info)


def _summed(
    log_ratio_N: torch.Tensor, weights_N: torch.Tensor, data: TensorDict, context: OneUpdate
) -> dict[str, Metric]:
    """What `step_metrics` are made of. verl averages a sum over ranks, after it has added those of micro-batches."""
    mask_N = data["response_mask"].values()
    sums = importance_sums(log_ratio_N, data["policy_versions"].values() >= context.newest, mask_N)
    if context.weighs:
        truncated_N = (log_ratio_N > math.log(context.threshold)) * mask_N
        sums["weight"], sums["truncated"] = torch.stack([weights_N.sum(), truncated_N.sum()]).tolist()
    return {
        _SUMS + name: Metric(AggregationType.MAX, value)
        if name.endswith("highest")
        else Metric(AggregationType.SUM, value * data["dp_size"])
        for name, value in sums.items()
    }


def step_metrics(metrics: dict[str, Any]) -> dict[str, float]:
    """Take the loss's sums out of a step's metrics. Returns what they say; nothing if the workers have no such loss."""
    sums = {name.removeprefix(_SUMS): metrics.pop(name) for name in [*metrics] if name.startswith(_SUMS)}
    if not sums:
        return {}
    values = importance_metrics(sums)
    if "weight" in sums and (tokens := sums["in_loss"]):
        values["rollout_corr/rollout_is_mean"] = sums["weight"] / tokens
        values["rollout_corr/rollout_is_ratio_fraction_high"] = sums["truncated"] / tokens
    return values
