"""Every correction option reaches the loss of a run with mixtures, as `tests/startup/test_correction_acts.py`."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recipe.async_dapo import store
from recipe.async_dapo.extensions.mixture.balance_heuristic import mixture_token_log_probs
from recipe.async_dapo.extensions.mixture.correction import Mixture
from recipe.async_dapo.extensions.mixture.passes import MixturePasses

from ....support.policy_loss import (
    BEHAVIOUR,
    CORRECTION,
    DECOUPLED,
    NONE,
    RESPONSE_LENS,
    SEQUENCE_MASK,
    current_minus_proximal,
    expected,
    per_token,
    proximal_minus_behaviour,
)
from ....support.ranks import nested

MIXTURE = "async_dapo.importance_sampling=mixture"


def mixture_at(trajectory: int, position: int) -> float:
    """The log-prob of what sampled a token, as the balance heuristic says."""
    return BEHAVIOUR + 0.3 - 0.05 * position * trajectory


def sampled_by(log_probs: Callable[..., Any]) -> type[MixturePasses]:
    """The passes with log-probs that are given."""

    class Given(MixturePasses):
        def begin(self) -> None:
            self._mixture = Mixture.__new__(Mixture)
            self._mixture._correction = self._correction
            self._mixture.log_probs = log_probs  # type: ignore[method-assign]

    return Given


MIXED = sampled_by(lambda *_, **__: per_token(mixture_at))
OPTIONS = ["", "rollout_is_threshold=1.1", "rollout_is=sequence", "rollout_is_batch_normalize=True", SEQUENCE_MASK]


def test_every_option_changes_the_loss(loss) -> None:
    losses = {more: loss(MIXTURE, *(f"{CORRECTION}{one}" for one in more.split()), passes=MIXED) for more in OPTIONS}
    losses |= {mode: loss(mode) for mode in (NONE, DECOUPLED)}
    for (first, one), (second, other) in itertools.combinations(losses.items(), 2):
        assert not math.isclose(one, other, rel_tol=1e-4), (first, second)


def ratio_to_mixture(i: int, t: int) -> float:
    return math.exp(BEHAVIOUR + proximal_minus_behaviour(i, t) - mixture_at(i, t))


def test_the_loss_is_ppo_s_on_its_ratio_times_its_truncated_weight(loss) -> None:
    weighted = expected(current_minus_proximal, lambda i, t: min(ratio_to_mixture(i, t), 2.0))
    assert loss(MIXTURE, passes=MIXED) == pytest.approx(weighted, rel=1e-5)


def test_a_batch_whose_every_token_is_withheld_has_the_loss_0_and_is_counted(loss) -> None:
    metrics: dict[str, Any] = {}
    assert loss(MIXTURE, passes=MIXED, metrics=metrics, oldest_version=1) == 0
    assert metrics == {"async_dapo/importance/not_finite_tokens": 0.0}


@pytest.mark.parametrize(
    ("stale", "counted"),
    [([2, 5, 0, 2], [1, 0, 4, 0]), ([3, 5, 1, 2], [1, 1, 3, 0])],
    ids=["a trajectory whole", "an update whole"],
)
def test_withheld_tokens_leave_the_number_that_the_loss_is_divided_by_unless_their_update_has_no_other(
    loss, stale: list[int], counted: list[int]
) -> None:
    cut = ("rollout.n=2", "actor.ppo_mini_batch_size=1", "actor.ppo_micro_batch_size_per_gpu=2")
    lengths = zip(stale, RESPONSE_LENS, strict=True)
    versions = nested([(torch.arange(length) >= old).to(torch.int32) for old, length in lengths])
    overrides = [f"actor_rollout_ref.{each}" for each in cut]
    loss(MIXTURE, *overrides, passes=MIXED, oldest_version=1, policy_versions=versions)
    assert [int(mask_T.sum()) for mask_T in store.tq.fields["loss_mask"].unbind()] == counted


def test_log_probs_that_are_no_numbers_end_the_run(loss) -> None:
    """It is no batch with fewer than two tokens, whose steps are left out."""

    def of_nan(*_: Any, **__: Any) -> torch.Tensor:
        return mixture_token_log_probs(torch.full((1, 1, 1), math.nan), torch.ones(1), torch.ones(1, 1))

    with pytest.raises(ValueError, match="NaN or positive"):
        loss(MIXTURE, passes=sampled_by(of_nan))
