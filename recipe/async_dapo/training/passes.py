"""Which pass gives pi_prox, the policy at the start of a step, and how much older tokens count: one object answers it.

    importance_sampling     pi_prox                               a token sampled by mu counts
    decoupled               the trainer's pass before the update  min(pi_prox / mu, threshold)
    mixture                 the same                              the same, with its group's mixture for mu
    none                    the same                              1
    bypass                  mu, the engines' own log-probs        in PPO's ratio

Where a step has one update, that update computes pi_prox itself, and no pass comes before it (`core/one_pass.py`).
Until the engines are judged by the first tokens of the newest weights, a pass comes before every update, whatever
corrects.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from omegaconf import DictConfig
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta

from .. import store
from ..config.derived import why_log_probs_first
from ..config.extensions import chosen, declared, load
from ..config.options import AsyncDAPOConfig
from ..config.values import ImportanceSampling
from ..core.agreement import NewestTokens, judge
from . import one_update, row_advantages, row_weights
from .agreement import newest_tokens
from .importance_sampling import importance_metrics, importance_sums

logger = logging.getLogger(__name__)

_PASS = "pass of log-probs before the update"

# What verl says where an estimator whitens what it makes, which takes two tokens.
_TOO_FEW_TOKENS = ("in the mask has to be 1", "sum of the mask is one")

Compute = Callable[[KVBatchMeta], KVBatchMeta]  # a method of verl's trainer, on a batch


class Correction(Protocol):
    """What an extension says of the tokens of older versions, in place of what the engines recorded."""

    def log_probs(self, batch: KVBatchMeta, *, step: int, metrics: dict[str, Any]) -> Sequence[torch.Tensor]:
        """Of what sampled each trajectory's tokens, [T] nats; asked in every step, before its update."""

    def weigh(
        self,
        batch: KVBatchMeta,
        log_ratio_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        lens_tok: Sequence[int],
        metrics: dict[str, Any],
    ) -> None:
        """Put the weights of these ratios in the place of verl's."""


class Passes:
    """The passes of a run's steps. The trainer asks it in its overrides of verl's, in this order.

    Args:
        config: verl reads `rollout_correction.bypass_mode` of it at every call.
        workers: that train the policy.
    """

    def __init__(self, config: DictConfig, options: AsyncDAPOConfig, workers: Any) -> None:
        self._config, self._options, self._workers = config, options, workers
        self._correction = config.algorithm.rollout_correction
        self._own: Correction | None = None  # of an extension
        self._newest = NewestTokens()  # of this life, until engines are judged
        self._has_judged_engines = False
        self._is_one = False  # in this step the update computes pi_prox itself
        mode, has_dropout = options.importance_sampling, one_update.has_dropout(config)
        why = why_log_probs_first(config, mode, has_dropout=has_dropout)
        self.in_words = f"a {_PASS}: {why}" if why else f"no {_PASS}"
        scored = ImportanceSampling.NONE if mode is ImportanceSampling.BYPASS else mode
        self._can_be_one = why_log_probs_first(config, scored, has_dropout=has_dropout) is None
        self._weighs_rows = row_weights.counts_rows(config)
        if self._weighs_rows:
            workers.set_loss_fn(row_weights.weighted(one_update.loss_of(config)))
        elif self._can_be_one:
            workers.set_loss_fn(one_update.loss_of(config))

    def begin(self) -> None:
        """The workers have the model's weights."""
        for name in chosen(self._config):
            if place := declared()[name].correction:
                self._own = load(name, place)(self._workers, self._config, self._options)

    def log_probs(self, batch: KVBatchMeta, step: int, compute: Compute, *, has_one_update: bool) -> KVBatchMeta:
        """Have log-probs computed before the update, where they are needed.

        Args:
            compute: verl's, which under bypass takes the engines'.
        """
        bypasses = self._correction.bypass_mode
        self._is_one = self._can_be_one and self._has_judged_engines and has_one_update
        if self._is_one and not bypasses:
            return batch
        if self._has_judged_engines:
            return compute(batch)
        with self._bypassing(False):
            batch = compute(batch)
        self._newest += newest_tokens(batch, step=step, whole_only=self._options.has_old_kv)
        warning = judge(self._newest)
        self._has_judged_engines = warning is not None
        if warning:
            logger.warning("step %d: %s", step, warning)
        return compute(batch) if bypasses else batch

    def advantage(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        """Have advantages computed, and older tokens weighted.

        Args:
            compute: verl's, which corrects as `rollout_correction` says.
        """
        try:
            return self._advantage(batch, step, metrics, compute)
        except ValueError as error:
            if not any(text in str(error) for text in _TOO_FEW_TOKENS):
                raise
            leave_all_out(batch, step)
            return batch

    def _advantage(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        if self._correction.bypass_mode or self._is_one:
            with self._bypassing(True):
                return compute(batch)
        data = store.read_padded(batch, ["response_mask", "policy_versions", "old_log_probs", "rollout_log_probs"])
        log_ratio_BT, mask_BT = data["old_log_probs"] - data["rollout_log_probs"], data["response_mask"]
        if self._own is not None:
            sampled_by = self._own.log_probs(batch, step=step, metrics=metrics)
            log_ratio_BT = data["old_log_probs"] - pad_sequence(sampled_by, batch_first=True)
        is_newest_BT = data["policy_versions"] >= step - 1
        metrics.update(importance_metrics(importance_sums(log_ratio_BT, is_newest_BT, mask_BT)))
        if not mask_BT.any():  # verl's correction refuses such a batch
            leave_all_out(batch, step)
            return batch
        batch = compute(batch)
        if self._correction.rollout_rs is not None:
            row_advantages.restore(batch, self._config)
        if self._own is not None:
            self._own.weigh(batch, log_ratio_BT.float(), mask_BT, [*map(len, sampled_by)], metrics)
        return batch

    def update(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        """Have the policy updated; the loss is told where it computes pi_prox itself, and what rows weigh."""
        if self._weighs_rows:
            row_weights.weigh_rows(batch, self._config)
        if not self._is_one:
            return compute(batch)
        batch.extra_info[one_update.FIELD] = one_update.loss_context(self._config, newest=step - 1)
        batch = compute(batch)
        metrics.update(one_update.step_metrics(metrics))
        return batch

    @contextmanager
    def _bypassing(self, bypasses: bool) -> Iterator[None]:
        before, self._correction.bypass_mode = self._correction.bypass_mode, bypasses
        try:
            yield
        finally:
            self._correction.bypass_mode = before


def leave_all_out(batch: KVBatchMeta, step: int) -> None:
    """Take every token of a batch out of the loss, where at most one is left in it."""
    logger.warning("step %d: the batch has fewer than two tokens in the loss, and is left out", step)
    mask = store.read_fields(batch, ["response_mask"])["response_mask"]
    store.write_field(batch, "response_mask", map(torch.zeros_like, mask))
    for field in ("advantages", "returns"):
        store.write_field(batch, field, [torch.zeros(len(mask_T)) for mask_T in mask])
