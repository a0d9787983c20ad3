"""Mixtures and ratios: by hand, on an enumerated model (exact to rounding), at the ends of their range; and errors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.async_dapo.training import importance_sampling
from recipe.async_dapo.training.importance_sampling import (
    importance_metrics,
    importance_sums,
    mixture_token_log_probs,
    ratio_statistics,
    ratio_sums,
)
from recipe.async_dapo.training.metrics import PREFIX

from ..support.softmax_sequence_model import (
    assert_exact,
    balance_weights,
    exact_moments,
    make_world,
    prefix_weights,
    scheduled_log_probs,
    trajectory_probs,
    uniform_weights,
)

torch.set_num_threads(1)  # of small tensors
NAN, INF = math.nan, math.inf
NOT_FINITE = PREFIX + "importance/not_finite_tokens"
LOG_Q_KBT = torch.log(torch.tensor([[[0.1, 0.4]], [[0.3, 0.2]]]))
ONES_BT = torch.ones(1, 2)
# Row: one kind of trajectory; column: the version that generates this position.
SCHEDULES = {
    "partial": [[0, 1, 2, 2], [1, 2, 2, 2], [2, 2, 2, 2]],
    "consistent": [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]],
    "mixed": [[0, 0, 0, 0], [0, 0, 1, 2], [1, 2, 2, 2], [2, 2, 2, 2]],
}
token_lists = st.lists(st.tuples(st.floats(-3, 3), st.integers(4, 6), st.booleans()), min_size=1, max_size=24).filter(
    lambda tokens: any(keep for _, _, keep in tokens)
)
derandomized = settings(max_examples=min(80, settings.default.max_examples), deadline=None, derandomize=True)


def statistics_of(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor) -> dict[str, float]:
    return ratio_statistics(ratio_sums(log_ratio_BT, mask_BT))


def metrics_of(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor) -> dict[str, float]:
    """All tokens are the newest version's."""
    return importance_metrics(importance_sums(log_ratio_BT, torch.ones_like(mask_BT, dtype=torch.bool), mask_BT))


def test_a_mixture_by_hand_skips_tokens_outside_the_mask_and_never_reads_them() -> None:
    mask_BT = torch.tensor([[1, 0, 1, 0]])  # a tool's answer in the middle, padding at the end
    log_q_KBT = torch.log(torch.tensor([[[0.1, NAN, 0.4, NAN]], [[0.3, NAN, 0.2, NAN]]]))
    mixture_BT = mixture_token_log_probs(log_q_KBT, torch.tensor([3, 1]), mask_BT)
    first = 0.75 * 0.1 + 0.25 * 0.3
    both = 0.75 * 0.1 * 0.4 + 0.25 * 0.3 * 0.2
    assert mixture_BT.dtype == torch.float64
    assert mixture_BT[0].exp().tolist() == pytest.approx([first, 1.0, both / first, 1.0])


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_weights_by_the_mixture_are_unbiased_whatever_mix_of_versions_has_sampled(kind: str, seed: int) -> None:
    world = make_world(seed=seed, drift=0.5)
    log_q_CXT = scheduled_log_probs(world.log_pi_JXT, torch.tensor(SCHEDULES[kind]))
    q_CX, counts_C = trajectory_probs(world.model, log_q_CXT), torch.tensor([3, 1, 4, 2][: len(log_q_CXT)])
    f_XD, truth_D = world.gradient_XD, world.target_mean(world.gradient_XD)
    weights_CX = balance_weights(world, log_q_CXT, counts_C)
    assert_exact(exact_moments(q_CX, weights_CX, f_XD, counts_C).mean_D, truth_D)
    unweighted_D = exact_moments(q_CX, torch.ones_like(q_CX), f_XD, counts_C).mean_D
    assert float((unweighted_D - truth_D).norm() / truth_D.norm()) > 0.1
    owen_CX = counts_C.sum() * world.p_X / (counts_C[:, None] * q_CX).sum(0)
    torch.testing.assert_close(weights_CX, owen_CX.expand_as(weights_CX))


def test_a_mixture_is_a_policy_whose_ratios_multiply_to_the_balance_heuristic() -> None:
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
    truth, share_J = float(world.p_X @ reward_XT.sum(-1)), counts_J / counts_J.sum()
    mixture_X = share_J @ trajectory_probs(model, world.log_pi_JXT)
    weight_XT = prefix_weights(world, world.log_pi_JXT, counts_J)
    assert float(mixture_X @ (weight_XT * reward_XT).sum(-1)) == pytest.approx(truth, abs=1e-12)
    constant_XT = torch.einsum("j,jxt->xt", share_J, world.log_pi_JXT.exp()).log()
    wrong_X = uniform_weights(world, constant_XT[None])[0]
    assert abs(float((mixture_X * wrong_X) @ reward_XT.sum(-1)) / truth - 1) > 0.05


def test_a_baseline_of_the_other_members_biases_the_balance_heuristic_unless_its_mean_is_the_same_for_all() -> None:
    """A group of one member of each version, whose trajectories are independent."""
    world = make_world(seed=32, drift=0.8, max_length=3)
    q_JX = trajectory_probs(world.model, world.log_pi_JXT)
    weighed_JX = q_JX * balance_weights(world, world.log_pi_JXT, torch.ones(3))
    truth_D, raw_J = world.target_mean(world.gradient_XD), q_JX @ world.reward_X
    for rewards_J, least, most in ((raw_J, 0.02, 1.0), (world.target_mean(world.reward_X).expand(3), 0.0, 1e-12)):
        baseline_J = (rewards_J.sum() - rewards_J) / 2
        estimate_JD = weighed_JX @ world.gradient_XD - baseline_J[:, None] * (weighed_JX @ world.score_XD)
        assert least <= float((estimate_JD.mean(0) - truth_D).norm() / truth_D.norm()) <= most


def test_long_trajectories_neither_overflow_nor_underflow() -> None:
    log_q_KBT = torch.stack([torch.full((1, 32_768), -3.0), torch.full((1, 32_768), -3.001)])
    mixture_BT = mixture_token_log_probs(log_q_KBT, torch.tensor([1, 1]), torch.ones(1, 32_768))
    assert float((log_q_KBT[0] - mixture_BT).sum()) == pytest.approx(math.log(2), rel=1e-9)
    statistics = statistics_of(torch.full((1, 9), 5_000.0), torch.ones(1, 9))
    assert all(math.isfinite(value) for value in statistics.values())
    statistics = statistics_of(torch.full((1, 9), -5_000.0), torch.ones(1, 9))
    assert statistics["ratio_max"] == 0.0
    assert statistics["k3_kl"] == 4_999.0


@pytest.mark.parametrize(
    ("log_q", "counts", "message"),
    [
        (LOG_Q_KBT[:, :, :1], [1, 1], "does not fit"),
        (LOG_Q_KBT, [1, 1, 1], "does not fit"),
        (LOG_Q_KBT, [2, -1], "counts_K: must be >= 1"),
        (LOG_Q_KBT, [1, 0], "counts_K: must be >= 1"),
        (LOG_Q_KBT, [1.0, NAN], "counts_K: must be >= 1"),
        (LOG_Q_KBT, [1.0, INF], "counts_K: must be >= 1"),
        (-LOG_Q_KBT, [1, 1], "NaN or positive"),
        (LOG_Q_KBT * NAN, [1, 1], "NaN or positive"),
        (LOG_Q_KBT - INF, [1, 1], "probability 0 for a trajectory"),
    ],
)
def test_bad_input_to_a_mixture_is_refused(log_q: torch.Tensor, counts: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixture_token_log_probs(log_q, torch.tensor(counts), ONES_BT)


def test_shapes_that_differ_are_refused() -> None:
    ratios = LOG_Q_KBT[0]
    with pytest.raises(ValueError, match="shapes must be equal"):
        importance_sums(ratios, ratios[0], ratios)


def test_ratios_that_are_not_finite_and_a_batch_without_tokens_end_no_run() -> None:
    ratios = LOG_Q_KBT[0]
    assert statistics_of(ratios, torch.zeros(1, 2)) == {}
    assert statistics_of(ratios * NAN, ONES_BT) == {}
    assert metrics_of(ratios, torch.zeros(1, 2)) == {NOT_FINITE: 0}
    assert metrics_of(ratios * NAN, ONES_BT) == {NOT_FINITE: 2}
    whole = metrics_of(ratios, ONES_BT)
    with_others = torch.cat([ratios, torch.tensor([[NAN, INF, -INF]])], dim=-1)
    expected = whole | {NOT_FINITE: 3}
    assert metrics_of(with_others, torch.ones(1, 5)) == expected != whole


def test_statistics_of_parts_add_up_to_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ratios, mask_BT = 30 * torch.randn(3, 7, dtype=torch.float64), torch.ones(3, 7, dtype=torch.bool)
    mask_BT[1, :5] = False  # parts without tokens, too
    whole = ratio_sums(ratios, mask_BT)
    monkeypatch.setattr(importance_sampling, "CHUNK", 2)
    assert whole["tokens"] == 16
    assert ratio_sums(ratios, mask_BT) == pytest.approx(whole, rel=1e-12)


@derandomized
@given(token_lists)
def test_statistics_of_all_tokens_and_of_the_newest_version_equal_a_loop_over_tokens(
    tokens: list[tuple[float, int, bool]],
) -> None:
    log_ratio_BT, version_BT, mask_BT = (torch.tensor(column)[None] for column in zip(*tokens, strict=True))
    poisoned_BT = torch.where(mask_BT, log_ratio_BT, torch.nan)
    expected = {NOT_FINITE: 0.0}
    for name, versions in (("overall", (4, 5, 6)), ("staleness_0", (6,))):
        logs = [float(torch.tensor(lr)) for lr, v, keep in tokens if keep and v in versions]
        if not logs:
            continue
        r = [math.exp(x) for x in logs]
        own = {
            "ratio_max": max(r),
            "k3_kl": sum(x - 1 - lx for x, lx in zip(r, logs, strict=True)) / len(r),
            "ess_ratio": sum(r) ** 2 / sum(x * x for x in r) / len(r),
        }
        own_BT = mask_BT & torch.isin(version_BT, torch.tensor(versions))
        assert statistics_of(poisoned_BT, own_BT) == pytest.approx(own, abs=1e-12)
        emitted = own if name == "overall" else {key: own[key] for key in ("ratio_max", "k3_kl")}
        expected |= {f"{PREFIX}importance/{name}/{key}": value for key, value in emitted.items()}
    sums = importance_sums(poisoned_BT, version_BT >= 6, mask_BT)
    assert importance_metrics(sums) == pytest.approx(expected, abs=1e-12)


def test_k3_keeps_its_digits_when_policies_almost_agree() -> None:
    statistics = statistics_of(torch.tensor([[1e-9]], dtype=torch.float64), torch.ones(1, 1))
    assert statistics["k3_kl"] == pytest.approx(0.5e-18, rel=0.1, abs=0.0)
