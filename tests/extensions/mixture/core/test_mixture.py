"""Mixtures of versions, within a prompt group too: by definition, at the ends of their range; errors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transfer_queue import KVBatchMeta

from recipe.async_dapo.extensions.mixture.balance_heuristic import (
    group_mixture,
    group_schedules,
    mixture_token_log_probs,
    segments_of,
)
from recipe.async_dapo.extensions.mixture.correction import members_by_group
from recipe.async_dapo.extensions.mixture.plan import plan_mixtures

torch.set_num_threads(1)  # of small tensors
NAN, INF = math.nan, math.inf
LOG_Q_KBT = torch.log(torch.tensor([[[0.1, 0.4]], [[0.3, 0.2]]]))
ONES_BT = torch.ones(1, 2)
derandomized = settings(max_examples=min(80, settings.default.max_examples), deadline=None, derandomize=True)


def test_long_trajectories_neither_overflow_nor_underflow() -> None:
    log_q_KBT = torch.stack([torch.full((1, 32_768), -3.0), torch.full((1, 32_768), -3.001)])
    mixture_BT = mixture_token_log_probs(log_q_KBT, torch.tensor([1, 1]), torch.ones(1, 32_768))
    assert mixture_BT.dtype == torch.float64
    assert float((log_q_KBT[0] - mixture_BT).sum()) == pytest.approx(math.log(2), rel=1e-9)


@derandomized
@given(versions=st.integers(1, 4), longest=st.integers(1, 9), seed=st.integers(0, 999))
def test_a_prefix_has_the_mean_probability_that_all_versions_give_it(versions: int, longest: int, seed: int) -> None:
    """Weights with that in their denominator are Owen's balance heuristic, with which no mean is biased."""
    generator = torch.Generator().manual_seed(seed)
    log_q_KBT = -3 * torch.rand(versions, 3, longest, generator=generator, dtype=torch.float64)
    counts_K = torch.randint(1, 5, (versions,), generator=generator)
    mask_BT = torch.rand(3, longest, generator=generator) < 0.7
    mixture_BT = mixture_token_log_probs(torch.where(mask_BT, log_q_KBT, NAN), counts_K, mask_BT)
    prefix_KBT = torch.where(mask_BT, log_q_KBT, 0.0).cumsum(-1).exp()
    expected_BT = torch.einsum("k,kbt->bt", counts_K / counts_K.sum(dtype=torch.float64), prefix_KBT)
    torch.testing.assert_close(mixture_BT.cumsum(-1).exp(), expected_BT)
    assert (mixture_BT[~mask_BT].abs() < 1e-12).all(), "tokens of others have no ratio"


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


group_sizes = st.lists(st.integers(1, 4), min_size=2, max_size=3)


def longs(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def prefix_means(versions: list[Tensor], scored: dict[int, list[Tensor]]) -> list[Tensor]:
    """For each prefix of each member, the mean of the probabilities that the schedules of all members give it."""
    means = []
    for member, own in enumerate(versions):
        schedules = [[int(each[min(t, len(each) - 1)]) for t in range(len(own))] for each in versions]
        log_q_KT = torch.tensor([[scored[j][member][t] for t, j in enumerate(schedule)] for schedule in schedules])
        means.append(log_q_KT.double().cumsum(-1).exp().mean(0))
    return means


@derandomized
@given(group_sizes, st.integers(0, 999))
def test_a_prefix_has_the_mean_probability_that_its_group_s_schedules_give_it(lens: list[int], seed: int) -> None:
    """Whatever versions its members have had, and wherever they switched; a schedule goes on with its last version."""
    generator = torch.Generator().manual_seed(seed)
    versions = [torch.randint(4, 7, (n,), generator=generator).sort().values for n in lens]
    scored = {j: [-3 * torch.rand(n, generator=generator) for n in lens] for j in (4, 5, 6)}
    recorded = [torch.stack([scored[int(j)][i][t] for t, j in enumerate(own)]) for i, own in enumerate(versions)]
    for own, expected in zip(group_mixture(versions, scored, recorded), prefix_means(versions, scored), strict=True):
        torch.testing.assert_close(own.cumsum(-1).exp(), expected, rtol=1e-5, atol=0)


@derandomized
@given(group_sizes, st.integers(0, 999))
def test_equal_versions_leave_what_the_engine_recorded(lens: list[int], seed: int) -> None:
    """Whatever the engine's own log-probs are: weights that are the same cannot be told apart by them."""
    generator = torch.Generator().manual_seed(seed)
    versions = [torch.randint(4, 7, (n,), generator=generator).sort().values for n in lens]
    trainer = [-torch.rand(n, generator=generator) * 5 for n in lens]
    engine = [own + 0.1 * torch.randn(len(own), generator=generator) for own in trainer]
    mixed = group_mixture(versions, dict.fromkeys((4, 5, 6), trainer), engine)
    for own, recorded in zip(mixed, engine, strict=True):
        torch.testing.assert_close(own, recorded.double(), rtol=0, atol=1e-12)


@derandomized
@given(group_sizes, st.integers(0, 999))
def test_a_mixture_lies_between_its_versions_and_moves_with_the_engine(lens: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    versions = [torch.full((n,), 4 + i) for i, n in enumerate(lens)]
    scored = {4 + j: [-torch.rand(n, generator=generator) * 3 for n in lens] for j in range(len(lens))}
    recorded = [scored[4 + i][i] for i in range(len(lens))]
    mixed = group_mixture(versions, scored, recorded)
    shifted = group_mixture(versions, scored, [own + 0.25 for own in recorded])
    for i, own in enumerate(mixed):
        every = torch.stack([scored[j][i] for j in scored]).double()
        assert (own >= every.min(0).values - 1e-9).all() and (own <= every.max(0).values + 1e-9).all()
        torch.testing.assert_close(shifted[i], own + 0.25, rtol=0, atol=1e-6)


def test_only_groups_that_mix_versions_take_passes_and_only_over_themselves() -> None:
    versions = [longs(7, 7), longs(7), longs(5), longs(7), longs(6, 7), longs(6, 6), longs(3), longs(7), longs()]
    versions += [longs(2, 2), longs(2)]
    segments = [segments_of(own) for own in versions]
    groups = {"all newest": [0, 1], "two": [2, 3], "partial": [4, 5, 8], "one of it has gone": [6, 7]}
    groups["of one version that has gone"] = [9, 10]
    plan = plan_mixtures(segments, groups.values(), available={5, 6, 7})
    assert plan.groups == [[2, 3], [4, 5]]
    assert plan.passes == {5: [2, 3], 6: [4, 5], 7: [2, 3, 4, 5]}
    assert plan.passes_before(7) == {5: [2, 3], 6: [4, 5]}
    assert plan.mixed_tok == 6
    assert plan.unknown_tok == 2


VERSIONS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5).map(sorted), min_size=1, max_size=3)


@derandomized
@given(VERSIONS)
def test_a_group_is_mixed_where_its_members_schedules_differ(versions: list[list[int]]) -> None:
    members = [longs(*own) for own in versions]
    plan = plan_mixtures([segments_of(own) for own in members], [range(len(members))], available={1, 2, 3})
    assert bool(plan.groups) == (len(group_schedules(members)[0]) > 1)


def test_a_group_s_members_are_those_of_a_prompt_and_an_output_without_padding() -> None:
    keys = ["a_0_0", "b_0_0", "a_1_0", "a_1_1", "pad_0_0"]
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=tags)
    assert members_by_group(batch) == {"a_0": [0, 2], "b_0": [1], "a_1": [3]}
