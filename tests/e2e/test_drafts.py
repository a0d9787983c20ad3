"""Drafts from siblings on the real stack: steps yield several tokens, and every token keeps its log-prob."""

import pytest

from ..support.harness import Run, ledger_closes, train

STEPS = 4
TOLERANCE = 1e-5  # nats, float32


@pytest.fixture(scope="module")
def drafted(assets, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("drafts") / "run"
    return train(assets, folder, steps=STEPS, strategy="partial", overrides=("async_dapo.drafts=siblings",))


def test_given_drafts_when_siblings_agree_then_a_step_yields_more_than_one_token_of_a_response(drafted):
    assert max(drafted.metric("async_dapo/drafts/tok_per_step")) > 1
    assert 0 < max(drafted.metric("async_dapo/drafts/accepted_ratio")) <= 1
    assert "drafts 1." in (drafted.folder / "train.log").read_text()


def test_given_drafts_when_the_trainer_computes_fresh_tokens_then_log_probs_are_the_engines(drafted):
    assert all(record["max_diff_newest"] < TOLERANCE for record in drafted.inspections)
    assert drafted.steps[0]["training/rollout_probs_diff_max"] <= 1e-6


def test_given_drafts_and_interrupted_responses_when_it_trains_then_nothing_is_lost(drafted):
    assert all(map(ledger_closes, drafted.steps))
    assert sum(drafted.metric("async_dapo/tokens/discarded")) == 0
    assert sum(drafted.metric("async_dapo/partial/resumed_groups")) > 0
