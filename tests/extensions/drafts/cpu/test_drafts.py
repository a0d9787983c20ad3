"""A real engine with drafts by suffix decoding samples what it samples without: the same distributions, log-probs,
and, at temperature 0, the same tokens.

Nightly, but for the arithmetic. Every run of the tests trains with drafts in `tests/e2e/test_partial_rollout.py`,
which compares the engine's log-probs with the trainer's, over interruptions and weight updates.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH

from ....support.composed_runs import write_model
from ....support.engine_program import seen_by

DRAFTED_ANSWERS = f"{__package__.removesuffix('.cpu')}.support.drafted_answers"
TEMPERATURES = ("1.0", "0.6")
FEW, MANY = (1536, 640), (9984, 9984)  # answers at each temperature, in one piece and interrupted
UNLIKELY = 1e-4  # for each of fourteen comparisons; so many answers show as small a shift as 1,024 at 1e-3
LEAST_COUNT = 20  # of a token, to be a cell of its own


def drafted_and_plain(model: Path, answers: tuple[int, int], *, timeout_s: float) -> dict[str, dict[str, Any]]:
    """With drafts, and without."""
    programs = [(DRAFTED_ANSWERS, model, drafted, *answers) for drafted in (True, False)]
    return dict(zip(("suffix", "none"), seen_by(*programs, timeout_s=timeout_s), strict=True))


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[str, dict[str, Any]]:
    model = write_model(tmp_path_factory.mktemp("drafts") / "model")
    return drafted_and_plain(model, FEW, timeout_s=580)


def p_value(one: dict[str, int], other: dict[str, int]) -> float:
    """Of the hypothesis that both were drawn from the same distribution; rare tokens together."""
    tokens = one.keys() | other.keys()
    cells = [(one.get(token, 0), other.get(token, 0)) for token in tokens]
    common = [cell for cell in cells if sum(cell) >= LEAST_COUNT]
    rest = [sum(column) for column in zip(*(cell for cell in cells if sum(cell) < LEAST_COUNT), strict=True)]
    table = torch.tensor(common + ([rest] if sum(rest) else []), dtype=torch.float64)
    expected = table.sum(1, keepdim=True) * table.sum(0) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(table) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


@pytest.mark.nightly
def test_given_drafts_when_an_engine_samples_then_some_are_accepted_and_a_step_yields_more_than_a_token(seen):
    drafted, accepted = seen["suffix"]["drafted_tok"], seen["suffix"]["accepted_tok"]
    assert 0 < accepted < drafted
    assert seen["none"]["drafted_tok"] == seen["none"]["accepted_tok"] == 0
    assert seen["suffix"]["generated_tok"] == seen["none"]["generated_tok"]


@pytest.mark.nightly
def test_given_drafts_when_an_engine_is_greedy_then_its_tokens_are_the_same(seen):
    assert seen["suffix"]["greedy"] == seen["none"]["greedy"]


@pytest.mark.nightly
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_given_drafts_when_an_engine_samples_then_the_distribution_is_the_same(seen, temperature):
    drafted, plain = (seen[drafts][temperature] for drafts in ("suffix", "none"))
    assert drafted["lengths"] == plain["lengths"] == [24]
    for one, other in zip(drafted["counts"], plain["counts"], strict=True):
        assert p_value(one, other) > UNLIKELY, (one, other)
    assert drafted["mean_log_prob"] == pytest.approx(plain["mean_log_prob"], abs=0.03)


@pytest.mark.nightly
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_given_drafts_when_answers_are_interrupted_and_weights_change_then_the_distribution_is_the_same(
    seen, temperature
):
    drafted, plain = (seen[drafts][temperature]["interrupted"] for drafts in ("suffix", "none"))
    for one, other in zip(drafted, plain, strict=True):
        assert p_value(one, other) > UNLIKELY, (one, other)
    assert seen["suffix"][temperature]["accepted_tok"] > 0 == seen["none"][temperature]["accepted_tok"]
    assert all(seen[drafts][temperature]["returns"]["aborted"] for drafts in seen)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_given_drafts_when_ten_thousand_answers_are_sampled_then_their_distribution_is_the_same(tmp_path):
    """Fourteen comparisons: one of them would be below 0.01 / 14 in a hundredth of all runs of a right engine."""
    model = write_model(tmp_path / "model")
    drafted, plain = drafted_and_plain(model, MANY, timeout_s=6000).values()
    values = [
        p_value(one, other)
        for temperature in TEMPERATURES
        for kind in ("counts", "interrupted")
        for one, other in zip(drafted[temperature][kind], plain[temperature][kind], strict=True)
    ]
    assert len(values) * min(values) > 0.01, values


@pytest.mark.nightly
def test_given_drafts_when_greedy_answers_are_interrupted_and_weights_change_then_their_tokens_are_the_same(seen):
    drafted, plain = (seen[drafts]["interrupted greedy"] for drafts in ("suffix", "none"))
    assert drafted == plain and len(set(map(tuple, drafted))) == 1
    assert drafted[0] != seen["none"]["greedy"][0][: len(drafted[0])], "the update has changed nothing"


@pytest.mark.nightly
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_given_drafts_when_a_token_is_sampled_then_its_log_prob_is_the_one_it_has_without(seen, temperature):
    assert seen["suffix"][temperature]["spread"] < 1e-5


@pytest.mark.parametrize("values", [[0.0, 0.5, 0.9], [3, 0, 7]])
def test_given_values_of_requests_when_repeated_for_drafts_then_they_are_those_that_vllm_asks_for(values, monkeypatch):
    monkeypatch.syspath_prepend(PLUGIN_PATH)
    from async_dapo_cpu.vllm_mends import RepeatForDrafts

    given = torch.tensor(values)
    output = given.new_full((5,), 99)
    RepeatForDrafts()[(3,)](output, given, torch.tensor([2, 2, 5], dtype=torch.int32), 0, 1, MAX_NUM_TOKENS=128)
    first, last = given[0] if given[0] else 1, given[2]
    assert output.tolist() == [float(first)] * 2 + [float(last)] * 3
