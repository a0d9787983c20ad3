"""Every metric that a step emits is declared, and every declared one is emitted."""

import pytest
import torch

from recipe.async_dapo.config import RolloutStrategy
from recipe.async_dapo.metrics import METRICS, PREFIX, STALENESS_BUCKETS, importance_metrics

from ..shell.cluster import Cluster, options
from ..shell.simulated_worker import random_task


def importance_keys() -> set[str]:
    """Of a batch with tokens of every staleness."""
    num = len(STALENESS_BUCKETS)
    version_BT = torch.arange(num).repeat(2, 1)
    return set(importance_metrics(torch.zeros(2, num), version_BT, torch.ones(2, num, dtype=torch.bool), step=num))


def test_emitted_and_declared_metrics_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, options(rollout_strategy=RolloutStrategy.PARTIAL), task=random_task(0))
    emitted = set(cluster.step())
    monkeypatch.undo()
    cluster.close()
    declared = {PREFIX + name for name in METRICS}
    assert emitted | importance_keys() == declared


def test_names_and_meanings_follow_the_style() -> None:
    for name, meaning in METRICS.items():
        assert name == name.lower() and " " not in name and len(name.split("/")) >= 2, name
        assert meaning, name
        assert name.endswith("_s") <= ("[s]" in meaning), name
        assert name.endswith(("_ratio", "_share")) <= ("[0-1]" in meaning), name
