"""Which pass gives pi_prox, the policy at the start of a step, and how much older tokens count: one object answers it.

    importance_sampling     pi_prox                               a token sampled by mu counts
    decoupled               the trainer's pass before the update  min(pi_prox / mu, threshold)
    mixture                 the same                              the same, with its group's mixture for mu
    none                    the same                              1
    bypass                  mu, the engines' own log-probs        in PPO's ratio

Extensions add to it: with `extensions/one_pass` a step of one update needs no pass before it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from .. import store
from ..config.extensions import declared, load
from ..config.options import AsyncDAPOConfig
from .importance_sampling import importance_metrics, importance_sums

logger = logging.getLogger(__name__)

# What verl says where an estimator whitens what it makes, which takes two tokens.
_TOO_FEW_TOKENS = ("in the mask has to be 1", "sum of the mask is one")

Compute = Callable[[KVBatchMeta], KVBatchMeta]  # a method of verl's trainer, on a batch


class Passes:
    """The passes of a run's steps. The trainer asks it in its overrides of verl's, in this order. An extension's
    subclass (`Declared.passes`) goes on to the next with `super()`.

    Args:
        config: verl reads `rollout_correction.bypass_mode` of it at every call.
        workers: that train the policy.

    Attributes:
        comes_first: it is asked before all others, as it needs what they may do without; at most one in a copy. Of the
            others the order changes nothing.
    """

    comes_first: ClassVar[bool] = False

    def __init__(self, config: DictConfig, options: AsyncDAPOConfig, workers: Any) -> None:
        self._config, self._options, self._workers = config, options, workers
        self._correction = config.algorithm.rollout_correction
        if (loss := self.loss()) is not None:
            workers.set_loss_fn(loss)

    @property
    def in_words(self) -> str:
        return f"{'no' if self._correction.bypass_mode else 'a'} pass of log-probs before the update"

    def loss(self) -> Any:
        """The loss that workers call in place of verl's; None: that one. A subclass puts its own around that of
        `super()`, or around `_verls_loss`. It depends on configuration and options alone, as it is asked for before a
        subclass is complete.
        """
        return None

    @cached_property
    def _actor(self) -> ActorConfig:
        """Of the loss. verl's keeps in it what the batch is divided by, and what is around that may read it there."""
        return omega_conf_to_dataclass(self._config.actor_rollout_ref.actor)

    @property
    def _verls_loss(self) -> Any:
        return partial(ppo_loss, self._actor)

    def begin(self) -> None:
        """The workers have the model's weights."""

    def log_probs(self, batch: KVBatchMeta, step: int, compute: Compute, *, has_one_update: bool) -> KVBatchMeta:
        """Have log-probs computed before the update, where they are needed.

        Args:
            compute: verl's, which under bypass takes the engines'.
            has_one_update: the policy is updated once in this step.
        """
        return compute(batch)

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
        if self._correction.bypass_mode:
            return compute(batch)
        data = store.read_padded(batch, ["response_mask", "policy_versions", "old_log_probs", "rollout_log_probs"])
        mask_BT = data["response_mask"]
        log_ratio_BT = data["old_log_probs"] - self.sampled_by(batch, data["rollout_log_probs"], step, metrics)
        is_newest_BT = data["policy_versions"] >= step - 1
        metrics.update(importance_metrics(importance_sums(log_ratio_BT, is_newest_BT, mask_BT)))
        if not mask_BT.any():  # verl's correction refuses such a batch
            leave_all_out(batch, step)
            return batch
        batch = compute(batch)
        self.weigh(batch, log_ratio_BT, mask_BT, metrics)
        return batch

    def sampled_by(
        self, batch: KVBatchMeta, recorded_BT: torch.Tensor, step: int, metrics: dict[str, Any]
    ) -> torch.Tensor:
        """Log-probs of what sampled the tokens, [B, T] nats; asked in every step, before its update.

        Args:
            recorded_BT: by the engines.
        """
        return recorded_BT

    def weigh(
        self, batch: KVBatchMeta, log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, metrics: dict[str, Any]
    ) -> None:
        """Put the weights of these ratios in the place of verl's, if those are of what the engines recorded."""

    def update(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        """Have the policy updated."""
        return compute(batch)

    @contextmanager
    def _bypassing(self, bypasses: bool) -> Iterator[None]:
        before, self._correction.bypass_mode = self._correction.bypass_mode, bypasses
        try:
            yield
        finally:
            self._correction.bypass_mode = before


def passes_of(extensions: Iterable[str]) -> type[Passes]:
    """Those of a run, with what its extensions add."""
    own = [load(name, place) for name in extensions if (place := declared()[name].passes)]
    assert sum(one.comes_first for one in own) <= 1, "two passes that come first"
    return type("RunPasses", (*sorted(own, key=lambda one: not one.comes_first), Passes), {})


def leave_all_out(batch: KVBatchMeta, step: int) -> None:
    """Take every token of a batch out of the loss, where at most one is left in it."""
    logger.warning("step %d: the batch has fewer than two tokens in the loss, and is left out", step)
    mask = store.read_fields(batch, ["response_mask"])["response_mask"]
    store.write_field(batch, "response_mask", map(torch.zeros_like, mask))
    for field in ("advantages", "returns"):
        store.write_field(batch, field, [torch.zeros(len(mask_T)) for mask_T in mask])
