"""The metrics that a step emits of mixtures are those that the extension declares."""

from types import SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from recipe.async_dapo import store
from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.extensions.mixture.correction import Mixture
from recipe.async_dapo.extensions.mixture.declared import DECLARED
from recipe.async_dapo.record.keys import PREFIX

from ....support.simulated_options import options


def test_an_empty_batch_has_all_metrics_that_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "read_fields", lambda _, names: {name: [] for name in names})
    monkeypatch.setattr(ray, "get", lambda answers, timeout: answers)
    workers = SimpleNamespace(world_size=1, call_extension=lambda *_: [0])
    rollout = {"temperature": 1.0, "log_prob_use_dynamic_bsz": True}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "algorithm": {"rollout_correction": {}}})
    metrics: dict[str, float] = {}
    batch = KVBatchMeta(partition_id=store.TRAIN, keys=[], tags=[])
    opts = options(rollout_strategy=RolloutStrategy.PARTIAL)
    Mixture(workers, config, opts).log_probs(batch, step=1, metrics=metrics)
    assert set(metrics) == {PREFIX + name for name in DECLARED.metrics}
