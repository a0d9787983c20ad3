"""Which rollout data can be trained on without bias, and at what variance: by enumeration, exact to rounding.

The estimated quantity is the policy gradient of a 0/1 reward under the target policy, unless a test says otherwise.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.corrections.softmax_sequence_model import (
    World,
    assert_exact,
    balance_weights,
    exact_moments,
    make_world,
    scheduled_log_probs,
    trajectory_probs,
    uniform_weights,
)

# Row: one kind of trajectory; column: the version that generates this position.
SCHEDULES = {
    "PR": torch.tensor([[0, 1, 2, 2], [1, 2, 2, 2], [2, 2, 2, 2]]),
    "CR": torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]),
    "mixed": torch.tensor([[0, 0, 0, 0], [0, 0, 1, 2], [1, 2, 2, 2], [2, 2, 2, 2]]),
}
schedules = st.sampled_from(sorted(SCHEDULES))
seeds = st.integers(0, 10_000)
drifts = st.floats(0.0, 1.5)
four_counts = st.lists(st.integers(1, 9), min_size=4, max_size=4).map(lambda n: torch.tensor(n, dtype=torch.float64))
exact_examples = settings(max_examples=40, deadline=None, derandomize=True)


def relative_bias(estimate_D: Tensor, truth_D: Tensor) -> float:
    return float((estimate_D - truth_D).norm() / truth_D.norm())


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_versions_is_unbiased_with_either_weight_and_biased_without(kind: str, seed: int) -> None:
    world = make_world(seed=seed, drift=0.5)
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, SCHEDULES[kind])
    q_CX = trajectory_probs(world.model, log_q_CXT)
    counts_C = torch.tensor([3, 1, 4, 2][: len(q_CX)])
    f_XD = world.gradient_XD
    truth_D = world.target_mean(f_XD)

    for weights_CX in (uniform_weights(world, log_q_CXT), balance_weights(world, log_q_CXT, counts_C)):
        assert_exact(exact_moments(q_CX, weights_CX, f_XD, counts_C).mean_D, truth_D)

    unweighted = exact_moments(q_CX, torch.ones_like(q_CX), f_XD, counts_C)
    assert relative_bias(unweighted.mean_D, truth_D) > 0.1
    newest_CXT = world.log_pi_JXT[-1].expand_as(log_q_CXT)
    recomputed = exact_moments(q_CX, uniform_weights(world, newest_CXT), f_XD, counts_C)
    assert relative_bias(recomputed.mean_D, truth_D) > 0.1, "log-probs recomputed by the newest version"


@exact_examples
@given(schedules, seeds, drifts, four_counts)
def test_balance_heuristic_never_has_more_variance_than_uniform_weights(
    kind: str, seed: int, drift: float, counts: Tensor
) -> None:
    world = make_world(seed=seed, drift=drift)
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, SCHEDULES[kind])
    q_CX = trajectory_probs(world.model, log_q_CXT)
    counts_C = counts[: len(q_CX)]
    uniform = exact_moments(q_CX, uniform_weights(world, log_q_CXT), world.gradient_XD, counts_C)
    balance = exact_moments(q_CX, balance_weights(world, log_q_CXT, counts_C), world.gradient_XD, counts_C)
    assert balance.variance <= uniform.variance * (1 + 1e-12)


@exact_examples
@given(schedules, seeds, drifts, four_counts, st.sampled_from([0.0, 0.3, 3.0, 30.0]))
def test_theorem_9_8_bounds_the_balance_heuristic_by_any_partition_of_unity(
    kind: str, seed: int, drift: float, counts: Tensor, sharpness: float
) -> None:
    world = make_world(seed=seed, drift=drift)
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, SCHEDULES[kind])
    q_CX = trajectory_probs(world.model, log_q_CXT)
    counts_C = counts[: len(q_CX)]
    generator = torch.Generator().manual_seed(seed)
    omega_CX = torch.softmax(sharpness * torch.randn(q_CX.shape, generator=generator, dtype=torch.float64), dim=0)
    # Owen's sum_j (1/n_j) sum_i omega_j f p / q_j in the form (1/N) sum_i w_i f.
    weights_CX = omega_CX * (counts_C.sum() / counts_C)[:, None] * uniform_weights(world, log_q_CXT)
    f_XD = world.reward_X[:, None]
    any_partition = exact_moments(q_CX, weights_CX, f_XD, counts_C)
    balance = exact_moments(q_CX, balance_weights(world, log_q_CXT, counts_C), f_XD, counts_C)
    mean = world.target_mean(f_XD)
    assert_exact(any_partition.mean_D, mean)
    slack = (1 / counts_C.min() - 1 / counts_C.sum()) * float(mean) ** 2
    assert balance.variance <= any_partition.variance + slack + 1e-12


def test_balance_heuristic_is_owens_partition_of_unity() -> None:
    world = make_world(seed=0, drift=0.7)
    q_CX = trajectory_probs(world.model, world.log_pi_JXT)
    counts_C = torch.tensor([5, 1, 2])
    omega_CX = counts_C[:, None] * q_CX / (counts_C[:, None] * q_CX).sum(0)
    owen_CX = omega_CX * (counts_C.sum() / counts_C)[:, None] * world.p_X / q_CX
    torch.testing.assert_close(balance_weights(world, world.log_pi_JXT, counts_C), owen_CX)


def variance_of(world: World, kind: str, *, balance: bool) -> float:
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, SCHEDULES[kind])
    counts_C = torch.tensor([2, 2, 2])
    weights = balance_weights(world, log_q_CXT, counts_C) if balance else uniform_weights(world, log_q_CXT)
    return exact_moments(trajectory_probs(world.model, log_q_CXT), weights, world.gradient_XD, counts_C).variance


def test_neither_partial_nor_consistent_rollout_has_the_lower_variance_everywhere() -> None:
    worlds = [make_world(seed=seed, drift=0.6) for seed in range(40)]
    wins = {
        weighting: sum(variance_of(w, "PR", balance=False) < variance_of(w, "CR", balance=balance) for w in worlds)
        for weighting, balance in (("uniform", False), ("balance", True))
    }
    # Partial rollout is fresher and mostly beats uniform weights; against the balance heuristic it mostly loses.
    assert 20 < wins["uniform"] < 40
    assert 0 < wins["balance"] < 20


def test_a_switch_drawn_at_random_or_decided_by_the_past_stays_unbiased() -> None:
    world = make_world(seed=5, drift=0.8)
    mask_XT, token_XT = world.model.mask_XT, world.model.token_XT
    f_XD, truth_D = world.gradient_XD, world.target_mean(world.gradient_XD)
    old_XT, new_XT = world.log_pi_JXT[0], world.log_pi_JXT[2]

    positions_T = torch.arange(mask_XT.shape[1])
    drawn_CT = torch.stack([2 * (positions_T >= switch) for switch in range(5)])
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, drawn_CT)
    chance_C = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1], dtype=torch.float64)
    q_CX = trajectory_probs(world.model, log_q_CXT)
    mean_D = torch.einsum("c,cx,cx,xd->d", chance_C, q_CX, uniform_weights(world, log_q_CXT), f_XD)
    assert_exact(mean_D, truth_D)

    two_seen_XT = (token_XT == 2).cumsum(-1) - (token_XT == 2).long() > 0
    own_XT = torch.where(two_seen_XT, new_XT, old_XT)
    q_X = trajectory_probs(world.model, own_XT)
    assert float(q_X.sum()) == pytest.approx(1.0, abs=1e-12)
    mean_D = exact_moments(q_X[None], uniform_weights(world, own_XT[None]), f_XD, torch.tensor([1])).mean_D
    assert_exact(mean_D, truth_D)


def sibling_triggered(world: World) -> tuple[Tensor, Tensor]:
    """Two trajectories side by side; when one ends, the other goes on under version 2 instead of version 0.

    Returns:
        joint_XX: probability of the pair; weights_XX and its transpose: uniform weight of the first and of the second.
    """
    length_X = world.model.length_X
    positions_T = torch.arange(world.model.mask_XT.shape[1])
    cut_CT = torch.stack([2 * (positions_T >= switch) for switch in range(5)])  # row: switch after so many tokens
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, cut_CT)
    q_CX, weights_CX = trajectory_probs(world.model, log_q_CXT), uniform_weights(world, log_q_CXT)
    first_XX = q_CX[length_X].T  # [x, y]: x was cut when y ended; a cut after x's own end changes nothing
    return first_XX * first_XX.T, weights_CX[length_X].T


def test_a_switch_triggered_by_a_sibling_keeps_the_pair_unbiased_and_uncorrelated() -> None:
    world = make_world(seed=10, drift=0.8)
    joint_XX, weights_XX = sibling_triggered(world)
    f_X, truth = world.reward_X, world.p_X @ world.reward_X
    assert float(joint_XX.sum()) == pytest.approx(1.0, abs=1e-12)
    first = (joint_XX * weights_XX * f_X[:, None]).sum()
    second = (joint_XX * weights_XX.T * f_X).sum()
    product = (joint_XX * weights_XX * weights_XX.T * f_X[:, None] * f_X).sum()
    assert_exact(torch.stack([first, second, product]), torch.stack([truth, truth, truth**2]))


def test_selection_by_length_is_not_repaired_by_importance_weights() -> None:
    """The warning: stop at the first completed trajectory and drop the other, and no weight helps, even on-policy."""
    world = make_world(seed=10, drift=0.8)
    length_X, f_X = world.model.length_X, world.reward_X
    truth = float(world.p_X @ f_X)
    joint_XX, weights_XX = sibling_triggered(world)
    ends_first_XX = length_X[:, None] <= length_X
    first_completed = torch.where(ends_first_XX, weights_XX * f_X[:, None], weights_XX.T * f_X)
    assert abs(float((joint_XX * first_completed).sum()) - truth) > 0.05

    on_policy_XX = world.p_X[:, None] * world.p_X
    biased = (on_policy_XX * torch.where(ends_first_XX, f_X[:, None], f_X)).sum()
    assert abs(float(biased) - truth) > 0.05
    trained = (on_policy_XX * torch.where(ends_first_XX, length_X[:, None], length_X)).sum()
    assert float(trained) < 0.85 * float(world.p_X @ length_X.double()), "mean length, trained against dispatched"


def test_carried_over_trajectories_repair_the_bias_of_the_step_that_left_them_behind() -> None:
    """A step trains what has ended within 2 tokens; the rest resumes under version 2 and trains in the next step."""
    world = make_world(seed=10, drift=0.8)
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, torch.tensor([[0, 0, 2, 2]]))
    q_X = trajectory_probs(world.model, log_q_CXT)[0]
    weighted_X = q_X * uniform_weights(world, log_q_CXT)[0] * world.reward_X
    early_X = world.model.length_X <= 2
    truth = float(world.p_X @ world.reward_X)
    for part_X in (early_X, ~early_X):
        assert abs(float(weighted_X[part_X].sum() / q_X[part_X].sum()) - truth) > 0.05
    assert float(weighted_X.sum()) == pytest.approx(truth, abs=1e-12)
