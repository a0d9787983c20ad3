"""Ratios: by definition, at the ends of their range; errors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.async_dapo.training import importance_sampling
from recipe.async_dapo.training.importance_sampling import (
    importance_metrics,
    importance_sums,
    ratio_statistics,
    ratio_sums,
)
from recipe.async_dapo.training.metrics import PREFIX

torch.set_num_threads(1)  # of small tensors
NAN, INF = math.nan, math.inf
NOT_FINITE = PREFIX + "importance/not_finite_tokens"
LOG_Q_KBT = torch.log(torch.tensor([[[0.1, 0.4]], [[0.3, 0.2]]]))
ONES_BT = torch.ones(1, 2)
token_lists = st.lists(st.tuples(st.floats(-3, 3), st.integers(4, 6), st.booleans()), min_size=1, max_size=24).filter(
    lambda tokens: any(keep for _, _, keep in tokens)
)
derandomized = settings(max_examples=min(80, settings.default.max_examples), deadline=None, derandomize=True)


def statistics_of(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor) -> dict[str, float]:
    return ratio_statistics(ratio_sums(log_ratio_BT, mask_BT))


def metrics_of(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor) -> dict[str, float]:
    """All tokens are the newest version's."""
    return importance_metrics(importance_sums(log_ratio_BT, torch.ones_like(mask_BT, dtype=torch.bool), mask_BT))


def test_long_trajectories_neither_overflow_nor_underflow() -> None:
    statistics = statistics_of(torch.full((1, 9), 5_000.0), torch.ones(1, 9))
    assert all(math.isfinite(value) for value in statistics.values())
    statistics = statistics_of(torch.full((1, 9), -5_000.0), torch.ones(1, 9))
    assert statistics["ratio_max"] == 0.0
    assert statistics["k3_kl"] == 4_999.0


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
