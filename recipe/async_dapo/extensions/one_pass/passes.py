"""A step of one update has no pass of log-probs before it: that update computes pi_prox itself."""

from functools import cached_property
from typing import Any

from omegaconf import DictConfig
from peft import PeftConfig
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from ...config.derived import updates_of
from ...config.values import ImportanceSampling
from ...training.passes import Compute, Passes
from . import one_update
from .conditions import why_two_passes


class OnePass(Passes):
    """The passes of steps of which those with one update have no pass before it: the loss computes its log-probs."""

    _is_one = False  # in this step the update computes pi_prox itself

    @property
    def in_words(self) -> str:
        why = self._why_two_passes(self._options.importance_sampling)
        return f"a pass of log-probs before the update: {why}" if why else "no pass of log-probs before the update"

    def loss(self) -> Any:
        loss = super().loss()
        return one_update.around(loss or self._verls_loss, self._actor) if self._can_be_one else loss

    def log_probs(self, batch: KVBatchMeta, step: int, compute: Compute, *, has_one_update: bool) -> KVBatchMeta:
        self._is_one = self._can_be_one and has_one_update
        if self._is_one and not self._correction.bypass_mode:
            return batch
        return super().log_probs(batch, step, compute, has_one_update=has_one_update)

    def advantage(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        if not self._is_one:
            return super().advantage(batch, step, metrics, compute)
        with self._bypassing(True):  # the loss weights tokens
            return super().advantage(batch, step, metrics, compute)

    def update(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        if not self._is_one:
            return super().update(batch, step, metrics, compute)
        batch.extra_info[one_update.FIELD] = one_update.loss_context(self._config, newest=step - 1)
        batch = super().update(batch, step, metrics, compute)
        metrics.update(one_update.step_metrics(metrics))
        return batch

    @cached_property
    def _can_be_one(self) -> bool:
        """Under `bypass` no pass is saved, but the update measures how far old tokens are."""
        mode = self._options.importance_sampling
        return self._why_two_passes(ImportanceSampling.NONE if mode is ImportanceSampling.BYPASS else mode) is None

    def _why_two_passes(self, mode: ImportanceSampling) -> str | None:
        correction = self._config.algorithm.rollout_correction
        return why_two_passes(
            correction=mode,
            updates=updates_of(self._config),
            weights=correction.rollout_is,
            threshold=correction.rollout_is_threshold,
            normalizes=correction.rollout_is_batch_normalize,
            rejects=correction.rollout_rs,
            kl_in_reward=self._config.algorithm.use_kl_in_reward,
            has_dropout=self._has_dropout,
            is_fsdp=self._config.model_engine == "dp",
        )

    @cached_property
    def _has_dropout(self) -> bool:
        return has_dropout(self._config)


def has_dropout(config: DictConfig) -> bool:
    """Whether the model, or the adapter that training begins with, leaves out random parts of itself in training, as
    most of today's do not.
    """
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    settings = model.hf_config.get_text_config().to_dict()
    if model.lora_adapter_path is not None:  # verl has peft build it with its own options
        settings |= PeftConfig.from_pretrained(model.lora_adapter_path).to_dict()
    return any("drop" in name and isinstance(value, float) and value > 0 for name, value in settings.items())
