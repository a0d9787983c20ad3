"""Every metric that a step emits is declared, and every declared one is emitted."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from docs.declared import metrics
from recipe.async_dapo.config.extensions import SERVED
from recipe.async_dapo.config.extensions import declared as declared_by_extensions
from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import RoundSummary
from recipe.async_dapo.core.trajectory import RoundCounts, Segment, Turn
from recipe.async_dapo.record import keys
from recipe.async_dapo.rollout.group_rollout import WorkerReport
from recipe.async_dapo.training.importance_sampling import importance_metrics, importance_sums
from recipe.async_dapo.training.metrics import PREFIX, STALENESS_BUCKETS, _tokens, _turns, update_metrics
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.simulated_cluster import Cluster
from ..support.simulated_options import options
from ..support.simulated_worker import random_task


def importance_keys() -> set[str]:
    """Of a batch with tokens of every staleness."""
    num = len(STALENESS_BUCKETS)
    mask_BT = torch.ones(2, num, dtype=torch.bool)
    is_newest_BT = torch.arange(num).repeat(2, 1) == num - 1
    return {*importance_metrics(importance_sums(torch.zeros(2, num), is_newest_BT, mask_BT))}


def test_emitted_and_declared_metrics_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    opts = options(rollout_strategy=RolloutStrategy.PARTIAL)
    cluster = Cluster(monkeypatch, opts, task=random_task(0))
    emitted = set(cluster.step())
    monkeypatch.undo()
    cluster.close()
    declared = {PREFIX + name for name in metrics()}
    extensions = {PREFIX + name for one in declared_by_extensions().values() for name in one.metrics}
    missing = {"agents", "gateway", "length_bias", *(one.extension for one in SERVED)} - declared_by_extensions().keys()
    emitted |= importance_keys() | extensions | update_metrics({}).keys()
    assert emitted <= declared and (missing or declared <= emitted)


@pytest.mark.parametrize(("norm", "skipped"), [(0.5, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_given_a_gradient_that_is_not_finite_then_the_step_says_that_an_update_was_left_out(norm, skipped) -> None:
    assert update_metrics({"actor/grad_norm": norm}) == {keys.SKIPPED_UPDATE: skipped}


def test_every_token_that_is_not_trained_counts_as_discarded_or_filtered() -> None:
    outcomes = [
        GroupOutcome(prompt_uid=verdict, verdict=verdict, response_lens_tok=(lens_tok, 1))
        for verdict, lens_tok in (
            (Verdict.VALID, 50),
            (Verdict.FILTERED, 8),
            (Verdict.FAILED, 6),
        )
    ]
    summary = RoundSummary(round_id="step-1", outcomes=tuple(outcomes), start_order=(), discarded_tok=9)
    record: Any = SimpleNamespace(workers=WorkerReport(counts=RoundCounts(diverged_tok=3)), summary=summary)
    values = _tokens(record, trained_tok=70, withheld_tok=30)
    assert {key: value for key, value in values.items() if key.startswith("tokens/")} == {
        "tokens/trained": 70,
        "tokens/discarded": 9 + 30 + 3 + 7,
        "tokens/filtered": 9,
        "tokens/waste_ratio": 49 / 119,
    }


def test_means_of_turns_are_over_trajectories_and_over_turns() -> None:
    def turn_of(*lens_tok: int) -> Turn:
        segments = [Segment(policy_version=0, token_ids=range(n), rollout_log_probs=range(n)) for n in lens_tok]
        return Turn(prompt_digest=b"", prompt_len_tok=1, segments=segments)

    two_turns, one_turn = RoundCounts(), RoundCounts()
    two_turns.end([turn_of(2, 3), turn_of(7)])
    one_turn.end([turn_of(6)])
    means = {"turns/mean": 1.5, "turns/tokens/mean": 6.0}
    assert means.items() <= _turns(two_turns + one_turn).items()
    assert set(_turns(RoundCounts()).values()) == {0}


def test_fields_of_a_reward_that_have_no_mean_do_not_end_a_validation(caplog: pytest.LogCaptureFixture) -> None:
    """verl averages all but texts, and votes by `pred`: lists, mappings and mixed fields would raise."""
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.replay_buffer = SimpleNamespace(left_out=3, observers={})
    rewards: dict[str, list[Any]] = {
        "reward": [1.0, 0.0, 1.0, 1.0],
        "acc": [True, False, None, 1],
        "pred": [["42"], "7", None, "42"],
        "steps": [["add", "carry"], ["add"], [], None],
        "kind": [1, "none", None, 2],
        "parts": [{"form": 1}, None, None, None],
        "tokens": [np.float32(2.0), np.float32(4.0), np.float32(3.0), np.float32(3.0)],
    }
    sources, uids = ["sums"] * 4, ["a", "a", "b", "b"]
    caplog.set_level("INFO", logger="recipe.async_dapo")
    failed = []
    for _ in range(2):
        metrics = trainer._val_metrics_update(sources, uids, {k: list(v) for k, v in rewards.items()}, [1] * 4)
        failed.append(metrics[keys.VALIDATION_FAILED])
    assert failed == [3, 0]
    assert metrics["val-core/sums/acc/mean@2"] == 0.5 and metrics["val-aux/sums/tokens/mean@2"] == 3.0
    assert not any(f"/{name}/" in key for key in metrics for name in ("steps", "kind", "parts", "pred"))
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "validation has no mean of the reward's fields ['kind', 'parts', 'pred', 'steps']: "
        "not all their values are numbers"
    ]
    rewards["pred"] = ["42", "7", None, "42"]
    voted = trainer._val_metrics_update(sources, uids, rewards, [1] * 4)
    assert "val-core/sums/reward/maj@2/mean" in voted or "val-aux/sums/reward/maj@2/mean" in voted
