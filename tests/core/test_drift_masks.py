"""Masks of tokens that the policy has drifted from: by hand, and what holds for any batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recipe.async_dapo.training.drift_masks import (
    CLIP_HIGH,
    CLIP_LOW,
    MASKS,
    MOST_DRIFT,
    MOST_SECOND_MOMENT,
    keeps_inside_clip,
    keeps_near_sequences,
    keeps_second_moment,
)

ALL_BT = torch.ones(2, 2, dtype=torch.bool)
rows = st.lists(st.tuples(st.floats(-3, 3), st.sampled_from([-1.0, 0.0, 1.0]), st.booleans()), min_size=4, max_size=4)
batches = st.lists(rows, min_size=1, max_size=6)


def tensors(batch: list[list[tuple[float, float, bool]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Log ratio, advantage (a trajectory's, as GRPO's) and mask, [B, T]."""
    log_ratio_BT = torch.tensor([[log for log, _, _ in row] for row in batch])
    advantage_BT = torch.tensor([[row[0][1]] * len(row) for row in batch])
    return log_ratio_BT, advantage_BT, torch.tensor([[kept for _, _, kept in row] for row in batch])


def test_a_sequence_goes_if_it_was_bad_and_the_policy_has_left_it_on_average() -> None:
    far, near = -2.1 * MOST_DRIFT, -1.9 * MOST_DRIFT
    bad, good = torch.full((2, 2), -0.5), torch.full((2, 2), 0.5)
    log_ratio_BT = torch.tensor([[far, 0.0], [near, 0.0]])
    assert keeps_near_sequences(log_ratio_BT, bad, ALL_BT)[:, 0].tolist() == [False, True]
    assert keeps_near_sequences(log_ratio_BT, good, ALL_BT).all()
    assert keeps_near_sequences(-log_ratio_BT, bad, ALL_BT).all()  # the policy likes it more than what sampled it did
    shorter_BT = torch.tensor([[False, True], [True, False]])  # the mean is over the tokens of the loss
    assert keeps_near_sequences(log_ratio_BT, bad, shorter_BT)[:, 0].tolist() == [True, False]


@pytest.mark.parametrize(
    ("ratio", "advantage", "stays"),
    [
        (CLIP_HIGH + 0.01, 1.0, False),
        (CLIP_HIGH - 0.01, 1.0, True),
        (0.01, 1.0, True),
        (CLIP_LOW - 0.01, -1.0, False),
        (CLIP_LOW + 0.01, -1.0, True),
        (50.0, -1.0, True),
    ],
)
def test_a_token_leaves_the_clip_only_the_way_its_advantage_pushes(ratio: float, advantage: float, stays: bool) -> None:
    kept = keeps_inside_clip(torch.tensor([[math.log(ratio)]]), torch.tensor([[advantage]]), torch.tensor([[True]]))
    assert bool(kept) is stays


@settings(max_examples=200, deadline=None, derandomize=True)
@given(batches)
def test_the_second_moment_of_what_stays_is_bounded_and_no_token_goes_needlessly(batch) -> None:
    log_ratio_BT, advantage_BT, mask_BT = tensors(batch)
    keep_BT = keeps_second_moment(log_ratio_BT, advantage_BT, mask_BT)
    pushed_BT = mask_BT & (log_ratio_BT * advantage_BT > 0)
    square_BT = log_ratio_BT.double().square()
    stays_N, goes_N = square_BT[pushed_BT & keep_BT], square_BT[pushed_BT & ~keep_BT]
    assert keep_BT[mask_BT & ~pushed_BT].all()
    if len(stays_N):
        assert float(stays_N.mean()) <= MOST_SECOND_MOMENT
    if len(goes_N):
        first_N = goes_N[goes_N == goes_N.min()]
        assert float(torch.cat([stays_N, first_N]).mean()) > MOST_SECOND_MOMENT
        assert not len(stays_N) or goes_N.min() > stays_N.max()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(batches)
def test_no_mask_reads_outside_the_loss_or_leaves_fresh_tokens_out(batch) -> None:
    log_ratio_BT, advantage_BT, mask_BT = tensors(batch)
    hidden_BT = torch.where(mask_BT, log_ratio_BT, 99.0)
    for keeps in MASKS.values():
        assert torch.equal(
            keeps(hidden_BT, advantage_BT, mask_BT)[mask_BT], keeps(log_ratio_BT, advantage_BT, mask_BT)[mask_BT]
        )
        assert keeps(torch.zeros_like(log_ratio_BT), advantage_BT, mask_BT).all()
