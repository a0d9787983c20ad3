"""Formulas by hand, shapes, numerical range and errors; the proofs are in the two files beside this one."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.async_dapo.training.importance_sampling import (
    MAX_LOG,
    effective_sample_size,
    mixture_token_log_probs,
    multiple_importance_log_weights,
    multiple_importance_weights,
    renyi2_exponentiated,
    uniform_log_weights,
    version_counts,
    version_statistics,
)

NAN, INF = math.nan, math.inf
LOG_P_B = torch.log(torch.tensor([0.2, 0.5]))
LOG_Q_JB = torch.log(torch.tensor([[0.1, 0.4], [0.3, 0.2]]))
token_lists = st.lists(st.tuples(st.floats(-3, 3), st.integers(4, 6), st.booleans()), min_size=1, max_size=24).filter(
    lambda tokens: any(keep for _, _, keep in tokens)
)
derandomized = settings(max_examples=80, deadline=None, derandomize=True)


def test_weights_by_hand() -> None:
    weights_B = multiple_importance_weights(LOG_P_B, LOG_Q_JB, torch.tensor([3, 1]))
    assert weights_B.dtype == torch.float64
    assert weights_B.tolist() == pytest.approx([0.2 / (0.75 * 0.1 + 0.25 * 0.3), 0.5 / (0.75 * 0.4 + 0.25 * 0.2)])
    assert uniform_log_weights(LOG_P_B, LOG_Q_JB[1]).exp().tolist() == pytest.approx([0.2 / 0.3, 0.5 / 0.2])


def test_token_weights_belong_to_prefixes_skip_tokens_outside_the_mask_and_never_read_them() -> None:
    mask_BT = torch.tensor([[1, 0, 1, 0]])  # a tool's answer in the middle, padding at the end
    log_p_BT = torch.log(torch.tensor([[0.5, NAN, 0.2, NAN]]))
    log_q_JBT = torch.log(torch.tensor([[[0.1, NAN, 0.4, NAN]], [[0.3, NAN, 0.2, NAN]]]))
    counts_J = torch.tensor([1, 1])
    first, second = 0.5 / 0.2, 0.1 / ((0.04 + 0.06) / 2)
    weights_BT = multiple_importance_weights(log_p_BT, log_q_JBT, counts_J, mask_BT)
    assert weights_BT[0].tolist() == pytest.approx([first, first, second, second])
    mixture_BT = mixture_token_log_probs(log_q_JBT, counts_J, mask_BT.bool())
    assert mixture_BT[0].exp().tolist() == pytest.approx([0.2, 1.0, 0.05 / 0.2, 1.0])
    uniform_BT = uniform_log_weights(log_p_BT, log_q_JBT[0], mask_BT)
    assert uniform_BT[0].exp().tolist() == pytest.approx([5.0, 5.0, 2.5, 2.5])


def test_a_part_of_the_batch_gets_the_weights_it_has_in_the_whole() -> None:
    counts_JB = torch.tensor([[3, 1], [1, 3]])
    whole_B = multiple_importance_log_weights(LOG_P_B, LOG_Q_JB, counts_JB)
    part_B = multiple_importance_log_weights(LOG_P_B[1:], LOG_Q_JB[:, 1:], counts_JB[:, 1:])
    assert part_B.tolist() == whole_B[1:].tolist()


def test_policies_without_trajectories_in_the_group_need_no_log_probs() -> None:
    counts_JB = torch.tensor([[2, 2], [0, 1]])
    log_q_JB = torch.tensor([[-1.0, -2.0], [NAN, -1.0]])
    log_p_B = torch.tensor([-1.0, -INF])
    assert multiple_importance_weights(log_p_B, log_q_JB, counts_JB).tolist() == pytest.approx([1.0, 0.0])


def test_version_counts_are_per_group_in_the_order_of_the_batch() -> None:
    versions_J, counts_JB = version_counts(torch.tensor([9, 7, 9, 9, 7]), torch.tensor([5, 5, 1, 5, 1]))
    assert versions_J.tolist() == [7, 9]
    assert counts_JB.tolist() == [[1, 1, 1, 1, 1], [2, 2, 1, 2, 1]]


def test_long_trajectories_neither_overflow_nor_underflow() -> None:
    shape = (2, 1, 32_768)
    log_q_JBT = torch.stack([torch.full(shape[1:], -3.0), torch.full(shape[1:], -3.001)])
    mask_BT = torch.ones(shape[1:], dtype=torch.bool)
    log_w_BT = multiple_importance_log_weights(log_q_JBT[0], log_q_JBT, torch.tensor([1, 1]), mask_BT)
    assert float(log_w_BT[0, -1]) == pytest.approx(math.log(2), rel=1e-9)
    log_w_BT = uniform_log_weights(log_q_JBT[0], log_q_JBT[0] - 1.0, mask_BT)
    assert float(log_w_BT[0, -1]) == pytest.approx(32_768)
    weights_BT = multiple_importance_weights(log_q_JBT[0], log_q_JBT[:1] - 1.0, torch.tensor([1]), mask_BT)
    assert float(weights_BT[0, -1]) == pytest.approx(math.exp(MAX_LOG))
    assert float(effective_sample_size(log_w_BT)) == pytest.approx(1 / math.tanh(0.5), rel=1e-9)
    assert math.isfinite(float(renyi2_exponentiated(log_w_BT)))
    statistics = version_statistics(torch.full((1, 9), 5_000.0), torch.zeros(1, 9), torch.ones(1, 9))["overall"]
    assert all(math.isfinite(value) for value in statistics.values())  # type: ignore[arg-type]
    statistics = version_statistics(torch.full((1, 9), -5_000.0), torch.zeros(1, 9), torch.ones(1, 9))["overall"]
    assert statistics["ratio_max"] == 0.0
    assert statistics["k3_kl"] == 4_999.0


@pytest.mark.parametrize(
    ("log_p", "log_q", "counts", "mask", "message"),
    [
        (LOG_P_B, LOG_Q_JB[:, :1], [1, 1], None, "log_q .* does not fit log_p .2,."),
        (LOG_P_B, LOG_Q_JB, [1, 1], [1, 1], "trajectories are .B. without"),
        (LOG_P_B[None], LOG_Q_JB[:, None], [1, 1], None, "tokens .B, T. with one"),
        (LOG_P_B[None], LOG_Q_JB[:, None], [1, 1], [[1, 1, 1]], "does not fit"),
        (LOG_P_B[None, None], LOG_Q_JB[:, None, None], [1, 1], [[[1, 1]]], "does not fit"),
        (LOG_P_B, LOG_Q_JB, [1, 1, 1], None, "counts .3,.: must be .J. or .J, B."),
        (LOG_P_B, LOG_Q_JB, [2, -1], None, "counts: must be >= 0"),
        (LOG_P_B, LOG_Q_JB, [[1, 0], [1, 0]], None, "at least one trajectory in each column"),
        (LOG_P_B, LOG_Q_JB, [1.0, NAN], None, "counts: must be >= 0"),
        (LOG_P_B, LOG_Q_JB, [1.0, INF], None, "counts: must be >= 0"),
        (-LOG_P_B, LOG_Q_JB, [1, 1], None, "log_p: NaN or positive"),
        (LOG_P_B * NAN, LOG_Q_JB, [1, 1], None, "log_p: NaN or positive"),
        (LOG_P_B, LOG_Q_JB * NAN, [1, 1], None, "log_q: NaN or positive"),
        (LOG_P_B, LOG_Q_JB - INF, [1, 1], None, "probability 0 for a trajectory"),
    ],
)
def test_bad_input_to_weights_is_refused(
    log_p: torch.Tensor, log_q: torch.Tensor, counts: list[int], mask: list[int] | None, message: str
) -> None:
    mask_BT = None if mask is None else torch.tensor(mask)
    with pytest.raises(ValueError, match=message):
        multiple_importance_log_weights(log_p, log_q, torch.tensor(counts), mask_BT)


def test_bad_input_to_the_other_functions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rollout_log_probs .* does not fit"):
        uniform_log_weights(LOG_P_B, LOG_P_B[:1])
    with pytest.raises(ValueError, match="rollout_log_probs: probability 0"):
        uniform_log_weights(LOG_P_B, LOG_P_B - INF)
    with pytest.raises(ValueError, match=r"log_q_JBT .* does not fit"):
        mixture_token_log_probs(LOG_Q_JB, torch.tensor([1, 1]), torch.ones(2, 2))
    with pytest.raises(ValueError, match="must both be"):
        version_counts(torch.tensor([1, 2]), torch.tensor([1]))
    with pytest.raises(ValueError, match="shape"):
        effective_sample_size(LOG_P_B, mask=torch.ones(3))
    with pytest.raises(ValueError, match="group must be >= 0"):
        effective_sample_size(LOG_P_B, group=torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="log_weights: NaN or"):
        renyi2_exponentiated(LOG_P_B * NAN)
    with pytest.raises(ValueError, match="shapes must be equal"):
        version_statistics(LOG_Q_JB, LOG_Q_JB[0], LOG_Q_JB)
    with pytest.raises(ValueError, match="0 of 0 generated tokens"):
        version_statistics(LOG_Q_JB, LOG_Q_JB, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="0 of 4 generated tokens"):
        version_statistics(LOG_Q_JB * NAN, torch.ones(2, 2), torch.ones(2, 2))


@derandomized
@given(token_lists)
def test_divergences_per_group_equal_plain_sums(tokens: list[tuple[float, int, bool]]) -> None:
    log_w_N, group_N, mask_N = (torch.tensor(column) for column in zip(*tokens, strict=True))
    ess_G = effective_sample_size(log_w_N, mask_N, group_N - 4)
    d2_G = renyi2_exponentiated(log_w_N, mask_N, group_N - 4)
    normalised_G = renyi2_exponentiated(log_w_N, mask_N, group_N - 4, self_normalised=True)
    assert len(ess_G) == int(group_N.max()) - 3
    for group in range(len(ess_G)):
        w = [math.exp(float(torch.tensor(lw))) for lw, version, keep in tokens if keep and version == group + 4]
        if not w:
            assert ess_G[group] == 0
            assert d2_G[group].isnan()
            assert normalised_G[group].isnan()
            continue
        assert float(ess_G[group]) == pytest.approx(sum(w) ** 2 / sum(x * x for x in w))
        assert float(d2_G[group]) == pytest.approx(sum(x * x for x in w) / len(w))
        assert float(normalised_G[group]) == pytest.approx(len(w) / float(ess_G[group]))


def test_effective_sample_size_of_equal_weights_is_their_number_and_of_no_weight_zero() -> None:
    ess = effective_sample_size(torch.full((2, 5), -7.0))
    assert ess.dtype == torch.float64
    assert float(ess) == pytest.approx(10, rel=1e-12)
    assert float(effective_sample_size(torch.tensor([0.0, -INF, -INF]))) == 1.0
    assert float(effective_sample_size(torch.tensor([-INF, -INF]))) == 0.0


@derandomized
@given(token_lists)
def test_version_statistics_equal_a_loop_over_tokens(tokens: list[tuple[float, int, bool]]) -> None:
    log_ratio_BT, version_BT, mask_BT = (torch.tensor(column)[None] for column in zip(*tokens, strict=True))
    poisoned_BT = torch.where(mask_BT, log_ratio_BT, torch.nan)
    statistics = version_statistics(poisoned_BT, version_BT, mask_BT)
    present = sorted({version for _, version, keep in tokens if keep})
    assert list(statistics) == [*present, "overall"]
    for version, row in statistics.items():
        logs = [float(torch.tensor(lr)) for lr, v, keep in tokens if keep and version in (v, "overall")]
        r = [math.exp(x) for x in logs]
        assert row["tokens"] == len(r)
        expected = {
            "ratio_mean": sum(r) / len(r),
            "ratio_max": max(r),
            "ratio_min": min(r),
            "k3_kl": sum(x - 1 - lx for x, lx in zip(r, logs, strict=True)) / len(r),
            "ess_tok": sum(r) ** 2 / sum(x * x for x in r),
            "renyi2": sum(x * x for x in r) / len(r),
        }
        assert {name: value for name, value in row.items() if name != "tokens"} == pytest.approx(expected, abs=1e-12)


def test_k3_keeps_its_digits_when_policies_almost_agree() -> None:
    statistics = version_statistics(torch.tensor([[1e-9]], dtype=torch.float64), torch.ones(1, 1), torch.ones(1, 1))
    assert statistics[1]["k3_kl"] == pytest.approx(0.5e-18, rel=0.1, abs=0.0)
