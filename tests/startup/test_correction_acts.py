"""Every correction option reaches the loss of verl's V1 trainer: options -> wiring -> verl's own advantage and loss."""

import itertools
import math
from typing import Any

import pytest
import torch
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.async_dapo import store

from ..support.policy_loss import (
    BEHAVIOUR,
    BYPASS,
    CORRECTION,
    DECOUPLED,
    NONE,
    RESPONSE_LENS,
    SEQUENCE_MASK,
    current_minus_proximal,
    expected,
    per_token,
    proximal_minus_behaviour,
    ratio,
)
from ..support.ranks import nested

OPTIONS = {
    BYPASS: [
        "",
        SEQUENCE_MASK,
        "rollout_rs=token_k1 rollout_rs_threshold=0.5_2.0",
        f"loss_type=reinforce {SEQUENCE_MASK}",
        "loss_type=reinforce rollout_is=token",
    ],
    DECOUPLED: [
        "",
        "rollout_is_threshold=1.5",
        "rollout_is_threshold=0.9_1.1",
        "rollout_is=sequence",
        "rollout_is_batch_normalize=True",
        SEQUENCE_MASK,
    ],
}


def test_every_option_changes_the_loss_of_its_mode(loss) -> None:
    losses = {
        mode: {more: loss(mode, *(f"{CORRECTION}{option}" for option in more.split())) for more in options}
        for mode, options in OPTIONS.items()
    }
    without = loss(NONE)
    for mode, of_mode in losses.items():
        for (first, one), (second, other) in itertools.combinations([("none", without), *of_mode.items()], 2):
            assert not math.isclose(one, other, rel_tol=1e-4), (mode, first, second)


@pytest.mark.parametrize(
    ("mode", "log_ratio", "weight"),
    [
        (NONE, current_minus_proximal, lambda i, t: 1.0),
        (DECOUPLED, current_minus_proximal, lambda i, t: min(ratio(i, t), 2.0)),
        # CoPRIS (arXiv:2511.05589), eq. 8: the whole ratio to the behaviour policy is clipped.
        (BYPASS, lambda i, t: proximal_minus_behaviour(i, t) + current_minus_proximal(i, t), lambda i, t: 1.0),
    ],
    ids=["none", "decoupled", "bypass"],
)
def test_a_mode_s_loss_is_ppo_s_on_its_ratio_times_its_truncated_weight(loss, mode, log_ratio, weight) -> None:
    assert loss(mode) == pytest.approx(expected(log_ratio, weight), rel=1e-5)


def test_the_default_is_decoupled_and_leaves_verl_s_own_bypass_alone(loss) -> None:
    assert loss() == loss(DECOUPLED)
    assert loss(f"{CORRECTION}bypass_mode=True") == loss(BYPASS)


def test_rejected_tokens_leave_the_number_that_the_loss_is_divided_by_as_well_as_the_mask(loss) -> None:
    """verl takes them out of `response_mask` and divides by `loss_mask`: the more it rejects, the smaller the loss."""
    band = (DECOUPLED, f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.5_2.0")

    def weight(i: int, t: int) -> float:
        return min(ratio(i, t), 2.0) if 0.5 <= 1 / ratio(i, t) <= 2.0 else 0.0

    kept = sum(weight(i, t) > 0 for i, length in enumerate(RESPONSE_LENS) for t in range(length))
    assert 0 < kept < sum(RESPONSE_LENS)
    over_all = expected(current_minus_proximal, weight)
    assert loss(*band, advantage=PPOTrainer._compute_advantage) == pytest.approx(over_all, rel=1e-5), "verl alone"
    assert loss(*band) == pytest.approx(over_all * sum(RESPONSE_LENS) / kept, rel=1e-5)


@pytest.mark.parametrize(
    ("shuffle", "prompts", "counted"),
    [(False, 1, [1, 1, 3, 0]), (True, 1, [1, 1, 3, 1]), (True, 2, [0, 0, 3, 0])],
    ids=["updates", "updates nobody knows", "one update"],
)
def test_an_update_that_is_rejected_whole_is_divided_by_a_token_of_each_trajectory(
    loss, shuffle: bool, prompts: int, counted: list[int]
) -> None:
    """Its loss would be 0 / 0 otherwise. Where ranks shuffle between updates, each trajectory stands for itself."""
    band = (f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.5_2.0")
    cut = ("rollout.n=2", f"actor.ppo_mini_batch_size={prompts}", "actor.ppo_micro_batch_size_per_gpu=2")
    updates = (*cut, f"actor.shuffle={shuffle}", "actor.data_loader_seed=1")
    rejected = [(0, t) for t in range(3)] + [(1, t) for t in range(5)] + [(2, 0), (3, 0), (3, 1)]
    log_probs = per_token(lambda i, t: BEHAVIOUR + 5.0 * ((i, t) in rejected))
    loss(DECOUPLED, *band, *(f"actor_rollout_ref.{each}" for each in updates), old_log_probs=nested(log_probs))
    assert [int(mask_T.sum()) for mask_T in store.tq.fields["loss_mask"].unbind()] == counted


@pytest.mark.parametrize("mode", [NONE, DECOUPLED])
def test_a_batch_whose_every_token_is_withheld_has_the_loss_0_and_is_counted(loss, mode: str) -> None:
    metrics: dict[str, Any] = {}
    assert loss(mode, metrics=metrics, oldest_version=1) == 0
    assert metrics == {"async_dapo/importance/not_finite_tokens": 0.0}


def test_with_bypass_too_a_batch_whose_every_token_is_withheld_has_the_loss_0(loss) -> None:
    assert loss(BYPASS, oldest_version=1) == 0


@pytest.mark.parametrize("left", [0, 1])
def test_a_batch_of_which_verl_rejects_all_tokens_but_one_is_left_out_of_estimators_that_whiten(
    loss, left: int
) -> None:
    """They ask for two tokens, and end the run otherwise."""
    band = (f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.5_2.0")
    log_probs = per_token(lambda i, t: BEHAVIOUR + 5.0 * ((i, t) >= (0, left)))
    whitens = ("algorithm.adv_estimator=reinforce_plus_plus", *band)
    assert loss(DECOUPLED, *whitens, old_log_probs=nested(log_probs)) == 0
    assert not store.tq.fields["response_mask"].values().any()


@pytest.mark.parametrize(
    ("stale", "counted"),
    [([2, 5, 0, 2], [1, 0, 4, 0]), ([3, 5, 1, 2], [1, 1, 3, 0])],
    ids=["a trajectory whole", "an update whole"],
)
@pytest.mark.parametrize("mode", [NONE, DECOUPLED, BYPASS])
def test_withheld_tokens_leave_the_number_that_the_loss_is_divided_by_unless_their_update_has_no_other(
    loss, mode: str, stale: list[int], counted: list[int]
) -> None:
    cut = ("rollout.n=2", "actor.ppo_mini_batch_size=1", "actor.ppo_micro_batch_size_per_gpu=2")
    lengths = zip(stale, RESPONSE_LENS, strict=True)
    versions = nested([(torch.arange(length) >= old).to(torch.int32) for old, length in lengths])
    overrides = [f"actor_rollout_ref.{each}" for each in cut]
    loss(mode, *overrides, oldest_version=1, policy_versions=versions)
    assert [int(mask_T.sum()) for mask_T in store.tq.fields["loss_mask"].unbind()] == counted


def test_a_ratio_that_is_not_finite_is_counted_and_the_run_goes_on(loss) -> None:
    log_probs = per_token(lambda i, t: math.nan if (i, t) == (1, 2) else BEHAVIOUR)
    metrics: dict[str, Any] = {}
    loss(DECOUPLED, metrics=metrics, old_log_probs=nested(log_probs))
    assert metrics["async_dapo/importance/not_finite_tokens"] == 1.0
    assert metrics["async_dapo/importance/overall/ratio_max"] == 1.0
