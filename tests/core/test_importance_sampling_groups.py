"""Prompt groups, token-level weights and divergences: exact, on the enumerable model of `softmax_sequence_model`."""

import pytest
import torch
from torch import Tensor

from benchmarks.corrections.softmax_sequence_model import (
    World,
    assert_exact,
    balance_weights,
    exact_moments,
    make_world,
    prefix_weights,
    trajectory_probs,
    uniform_weights,
)
from recipe.async_dapo.training.importance_sampling import mixture_token_log_probs, version_statistics


def test_counts_per_prompt_are_unbiased_and_counts_of_the_whole_batch_are_not() -> None:
    """The second prompt is harder: its trajectories are from older versions. Three of four are."""
    prompts = [make_world(seed=11, drift=0.8), make_world(seed=12, drift=0.8)]
    of_prompt = (torch.tensor([0, 1, 3]), torch.tensor([3, 1, 0]))
    batch_counts_J = of_prompt[0] + of_prompt[1]
    for world, counts_J in zip(prompts, of_prompt, strict=True):
        f_XD = world.gradient_XD
        truth_D = world.target_mean(f_XD)
        q_JX = trajectory_probs(world.model, world.log_pi_JXT)
        unknown_JXT = torch.where(counts_J[:, None, None] > 0, world.log_pi_JXT, torch.nan)
        per_prompt = exact_moments(q_JX, balance_weights(world, unknown_JXT, counts_J), f_XD, counts_J)
        assert_exact(per_prompt.mean_D, truth_D)
        per_batch = exact_moments(q_JX, balance_weights(world, world.log_pi_JXT, batch_counts_J), f_XD, counts_J)
        assert float((per_batch.mean_D - truth_D).norm() / truth_D.norm()) > 0.1


def test_one_group_per_prompt_and_version_is_uniform_weighting() -> None:
    world = make_world(seed=13, drift=0.8)
    rows = [balance_weights(world, world.log_pi_JXT, counts_J)[0] for counts_J in torch.eye(3)]
    torch.testing.assert_close(torch.stack(rows), uniform_weights(world, world.log_pi_JXT))


def test_token_mixture_is_a_policy_whose_ratios_multiply_to_the_balance_heuristic() -> None:
    world = make_world(seed=14, drift=0.8)
    model, counts_J = world.model, torch.tensor([4, 1, 2])
    mixture_XT = mixture_token_log_probs(world.log_pi_JXT, counts_J, model.mask_XT)

    table_PV = torch.full((model.num_prefixes, model.vocab_size), torch.nan, dtype=torch.float64)
    table_PV[model.prefix_XT[model.mask_XT], model.token_XT[model.mask_XT]] = mixture_XT[model.mask_XT].exp()
    torch.testing.assert_close(table_PV.sum(-1), torch.ones(model.num_prefixes, dtype=torch.float64))

    assert not mixture_XT[~model.mask_XT].any()
    torch.testing.assert_close(
        uniform_weights(world, mixture_XT[None]), balance_weights(world, world.log_pi_JXT, counts_J)[:1]
    )


def test_prefix_weights_are_unbiased_for_rewards_per_token_and_constant_token_shares_are_not() -> None:
    world = make_world(seed=19, drift=0.8)
    model, counts_J = world.model, torch.tensor([4.0, 1.0, 2.0], dtype=torch.float64)
    table_PV = torch.linspace(-1, 2, model.num_prefixes * model.vocab_size, dtype=torch.float64) ** 2
    reward_XT = table_PV.view(model.num_prefixes, -1)[model.prefix_XT, model.token_XT] * model.mask_XT
    truth = float(world.p_X @ reward_XT.sum(-1))
    share_J = counts_J / counts_J.sum()
    mixture_X = share_J @ trajectory_probs(model, world.log_pi_JXT)

    weight_XT = prefix_weights(world, world.log_pi_JXT, counts_J)
    assert float(mixture_X @ (weight_XT * reward_XT).sum(-1)) == pytest.approx(truth, abs=1e-12)

    constant_XT = torch.einsum("j,jxt->xt", share_J, world.log_pi_JXT.exp()).log()
    wrong_X = uniform_weights(world, constant_XT[None])[0]
    assert abs(float((mixture_X * wrong_X) @ reward_XT.sum(-1)) / truth - 1) > 0.05


def test_variance_of_the_weights_is_renyi2_less_one_and_bounds_every_estimate() -> None:
    """A uniform behaviour policy makes all 81 strings of 4 tokens equally likely: each once is the expectation."""
    world = make_world(seed=17, drift=0.5)
    model = world.model
    q_X = trajectory_probs(model, model.token_log_probs(torch.zeros(model.num_prefixes, 3, dtype=torch.float64)))
    repeats_X = (81 * q_X).round().long()
    log_weights_N = (world.p_X / q_X).log().repeat_interleave(repeats_X)
    assert len(log_weights_N) == 81
    d2 = float((world.p_X**2 / q_X).sum())
    assert d2 > 1.5
    ones = torch.ones(1, 81)
    statistics = version_statistics(log_weights_N[None], ones, ones)["overall"]
    assert statistics["renyi2"] == pytest.approx(d2, rel=1e-12)
    assert statistics["ess_tok"] == pytest.approx(81 / d2, rel=1e-12)
    assert float(log_weights_N.exp().var(correction=0)) == pytest.approx(d2 - 1, rel=1e-12)
    f_XD, one = world.reward_X[:, None] * 3 - 1, torch.tensor([1])
    estimate_moments = exact_moments(q_X[None], (world.p_X / q_X)[None], f_XD, one)
    assert 0.0 < estimate_moments.variance <= float(f_XD.abs().max()) ** 2 * d2


class Group:
    """Three members of versions 0, 1, 2; axes XYZ of `joint` are their trajectories, all 15^3 outcomes."""

    def __init__(self, *, seed: int) -> None:
        self.world: World = make_world(seed=seed, drift=0.8, max_length=3)
        q_JX = trajectory_probs(self.world.model, self.world.log_pi_JXT)
        self.joint_XYZ = torch.einsum("x,y,z->xyz", *q_JX)
        self.rewards = self.per_member(self.world.reward_X.expand(3, -1))
        self.uniform_JX = uniform_weights(self.world, self.world.log_pi_JXT)
        self.balance_JX = balance_weights(self.world, self.world.log_pi_JXT, torch.tensor([1, 1, 1]))
        self.gradient_D = self.world.target_mean(self.world.gradient_XD)

    @staticmethod
    def per_member(values_JX: Tensor) -> Tensor:
        """[3, X, Y, Z]: the value of each member, as a function of the outcome."""
        x, y, z = values_JX
        shape = (len(x), len(y), len(z))
        return torch.stack([x[:, None, None].expand(shape), y[:, None].expand(shape), z.expand(shape)])

    def estimate(self, weights_JX: Tensor, advantages: Tensor, *, members: tuple[int, ...] = (0, 1, 2)) -> Tensor:
        """Expectation of the mean over `members` of weight * advantage * score, [D]."""
        total_D = torch.zeros_like(self.gradient_D)
        for member in members:
            others = tuple(axis for axis in range(3) if axis != member)
            marginal_X = (self.joint_XYZ * advantages[member]).sum(others) * weights_JX[member]
            total_D += marginal_X @ self.world.score_XD / len(members)
        return total_D


def leave_one_out_mean(values: Tensor) -> Tensor:
    return (values.sum(0) - values) / (len(values) - 1)


def direction_error(estimate_D: Tensor, truth_D: Tensor) -> float:
    return 1 - float(torch.cosine_similarity(estimate_D, truth_D, dim=0))


@pytest.mark.parametrize("members", [(0, 1, 2), (1, 2)], ids=["all trained", "oldest withheld, its reward kept"])
def test_leave_one_out_mean_keeps_members_of_different_versions_unbiased(members: tuple[int, ...]) -> None:
    group = Group(seed=32)
    advantages = group.rewards - leave_one_out_mean(group.rewards)
    estimate_D = group.estimate(group.uniform_JX, advantages, members=members)
    assert_exact(estimate_D, group.gradient_D)
    unweighted_D = group.estimate(torch.ones_like(group.uniform_JX), advantages, members=members)
    assert direction_error(unweighted_D, group.gradient_D) > 0.01


def test_group_mean_with_the_member_itself_only_shortens_the_gradient() -> None:
    group = Group(seed=32)
    advantages = group.rewards - group.rewards.mean(0)
    assert_exact(group.estimate(group.uniform_JX, advantages), group.gradient_D * 2 / 3)


def test_filter_and_std_keep_the_direction_for_binary_rewards_only() -> None:
    """A prompt's gradient is rescaled, by a factor that depends on its versions; graded rewards also bend it."""
    group = Group(seed=32)
    graded = group.rewards + Group.per_member(group.world.model.length_X.expand(3, -1) / 4)
    errors = []
    for rewards, reward_X in ((group.rewards, group.rewards[0, :, 0, 0]), (graded, graded[0, :, 0, 0])):
        std = rewards.std(0, correction=0)
        advantages = torch.where(std > 0, (rewards - rewards.mean(0)) / std.clamp(min=1e-9), 0.0)
        truth_D = group.world.target_mean(reward_X[:, None] * group.world.score_XD)
        errors.append(direction_error(group.estimate(group.uniform_JX, advantages), truth_D))
    assert errors[0] < 1e-12
    assert errors[1] > 1e-3


def test_balance_heuristic_needs_a_baseline_whose_mean_is_the_same_for_all_members() -> None:
    group = Group(seed=32)
    raw = leave_one_out_mean(group.rewards)
    weighted = leave_one_out_mean(group.rewards * Group.per_member(group.uniform_JX))
    biased_D = group.estimate(group.balance_JX, group.rewards - raw)
    assert float((biased_D - group.gradient_D).norm() / group.gradient_D.norm()) > 0.02
    for baseline in (weighted, torch.zeros_like(raw)):
        estimate_D = group.estimate(group.balance_JX, group.rewards - baseline)
        assert_exact(estimate_D, group.gradient_D)
