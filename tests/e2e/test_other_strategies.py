"""Strategies `partial_stale_kv` and `consistent` on the real stack."""

import pytest

from recipe.async_dapo.cpu.overrides import PROMPTS_PER_STEP

from ..support.harness import Run, train

STEPS = 5


@pytest.fixture(scope="module")
def stale_kv(assets, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("stale_kv")
    return train(assets, folder, steps=STEPS, strategy="partial_stale_kv")


@pytest.fixture(scope="module")
def consistent(assets, tmp_path_factory) -> Run:
    return train(assets, tmp_path_factory.mktemp("consistent"), steps=STEPS, strategy="consistent")


def test_given_stale_kv_when_requests_go_on_under_new_weights_then_nothing_is_prefilled_again(stale_kv):
    assert sum(stale_kv.metric("async_dapo/partial/resumed_groups")) > 0
    assert set(stale_kv.metric("async_dapo/partial/reprefilled_tokens")) == {0.0}
    assert set(stale_kv.metric("async_dapo/tokens/discarded")) == {0.0}
    spans = [len(spans) for record in stale_kv.inspections for spans in record["spans"]]
    assert max(spans) > 1, "no trajectory has tokens of two versions"


def test_given_consistent_rollout_when_it_trains_then_every_trajectory_is_of_one_version(consistent):
    assert {len(spans) for record in consistent.inspections for spans in record["spans"]} == {1}
    assert set(consistent.metric("async_dapo/early_stop/interrupted_groups")) == {0.0}
    assert set(consistent.metric("async_dapo/tokens/discarded")) == {0.0}


@pytest.mark.parametrize("name", ["stale_kv", "consistent"])
def test_given_a_strategy_when_it_trains_then_the_ledger_closes(name, request):
    run: Run = request.getfixturevalue(name)
    terms = ("trained", "filtered", "failed", "retired", "waiting", "buffered")
    for step in run.steps:
        assert step["async_dapo/ledger/drawn"] == sum(step[f"async_dapo/ledger/{term}"] for term in terms)
    assert run.steps[-1]["async_dapo/ledger/trained"] == STEPS * PROMPTS_PER_STEP
