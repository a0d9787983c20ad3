"""Drafts from siblings and earlier visits on the real stack: steps yield several tokens, every token keeps its
log-prob, and what was answered is in the checkpoint."""

from ..support import verl_imported  # noqa: F401, I001 (first of all)

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.async_dapo.core.prompt_history import MOST_ANSWERS
from recipe.async_dapo.record.checkpoint_folder import read_pool
from recipe.async_dapo.training.checkpoints import RolloutState, from_frames
from recipe.async_dapo_lab.quickstart.model_and_data import Assets

from ..support.harness import Run, ledger_closes, train

SAVED_STEP, KILLED_STEP, LAST_STEP = 4, 5, 6
VISITED_AGAIN = (
    "async_dapo.drafts=history",
    "data.train_max_samples=24",
    "trainer.total_epochs=50",
    "trainer.save_freq=2",
)
TOLERANCE = 1e-5  # nats, float32


@pytest.fixture(scope="module")
def drafted(assets, tmp_path_factory) -> Run:
    """All of its processes are killed in mid-round."""
    folder = tmp_path_factory.mktemp("drafts") / "run"
    killed = life(assets, folder, kill_when=lambda run: len(run.inspections) >= KILLED_STEP)
    assert killed.exit_code == -9, "the run ended before it could be killed"
    return killed


def life(assets: Assets, folder: Path, kill_when: Callable[[Run], bool] | None = None) -> Run:
    overrides = VISITED_AGAIN
    return train(assets, folder, steps=LAST_STEP, strategy="partial", overrides=overrides, kill_when=kill_when)


def test_given_drafts_when_siblings_agree_then_a_step_yields_more_than_one_token_of_a_response(drafted):
    assert max(drafted.metric("async_dapo/drafts/tok_per_step")) > 1
    assert 0 < max(drafted.metric("async_dapo/drafts/time_share")) < 1
    assert "drafts 1." in (drafted.folder / "train.log").read_text()


def test_given_drafts_when_the_trainer_computes_fresh_tokens_then_log_probs_are_the_engines(drafted):
    assert all(record["max_diff_newest"] < TOLERANCE for record in drafted.inspections)
    assert drafted.steps[0]["training/rollout_probs_diff_max"] <= 1e-6


def test_given_drafts_and_interrupted_responses_when_it_trains_then_nothing_is_lost(drafted):
    assert all(map(ledger_closes, drafted.steps))
    assert sum(drafted.metric("async_dapo/tokens/discarded")) == 0
    assert sum(drafted.metric("async_dapo/partial/resumed_groups")) > 0


def saved(run: Run, step: int) -> RolloutState:
    (folder,) = run.folder.rglob(f"global_step_{step}")
    return from_frames(read_pool(folder))


def test_given_drafts_of_earlier_visits_when_a_run_is_killed_and_resumed_then_it_goes_on_from_what_was_answered(
    drafted, assets
):
    before = dict(saved(drafted, SAVED_STEP).earlier)
    assert before and all(0 < len(answers) <= MOST_ANSWERS and all(answers) for answers in before.values())
    resumed = life(assets, drafted.folder)
    after = dict(saved(resumed, LAST_STEP).earlier)
    assert before.keys() <= after.keys() and before != after
    assert any(after[key] == answers for key, answers in before.items()), "those not visited since are as they were"
    assert all(map(ledger_closes, resumed.steps))
    assert "Unhandled error" not in (resumed.folder / "train.log").read_text()
