"""The quick start, whole: it learns, it stops early, and it says so; its checkpoints are evaluated and asked."""

import json
from collections import Counter
from pathlib import Path

import pytest

from recipe.async_dapo.record import keys
from recipe.async_dapo_lab.quickstart.__main__ import QUESTION
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import QUICK_STEPS, QUICK_VALIDATION
from recipe.async_dapo_lab.report.answers import read_samples
from recipe.async_dapo_lab.report.episodes import read_episodes
from recipe.async_dapo_lab.report.headline import headline
from recipe.async_dapo_lab.report.run import Run
from recipe.async_dapo_lab.run_files import ANSWERS_FILE, EPISODES_FILE

from ..support.harness import run_module

VALIDATION = "actor_rollout_ref.rollout.val_kwargs"
GREEDY = (f"{VALIDATION}.temperature=0", f"{VALIDATION}.do_sample=False")  # so that a validation can be repeated


def quick_start(assets: Assets, name: str, *arguments: str) -> tuple[Path, str]:
    """Returns its folder, and what it said."""
    folder = assets.folder.parent / name  # finds its model there
    limit = ("--timeout-s", "3000")  # before pytest's own limit, which would leave its processes
    return folder, run_module("recipe.async_dapo_lab.quickstart", "--output", str(folder), *limit, *arguments)


@pytest.fixture(scope="module")
def run(assets: Assets) -> Run:
    folder, said = quick_start(assets, "quickstart", "--", *GREEDY)
    for name in ("train.log", "metrics.jsonl", "report.html"):
        assert Path(folder, name).stat().st_size > 0
    run = Run.load(folder)
    assert f"\n{headline(run)}\n" in said
    return run


def test_given_the_quick_start_when_it_trains_then_the_model_learns(run):
    (_, before), *_, (_, after) = run.accuracy()
    assert 0.2 <= before <= 0.6
    assert after >= before + 0.3


def test_given_the_quick_start_when_it_trains_then_filter_and_stop_act(run):
    assert len(run.steps) == QUICK_STEPS
    assert run.ledger()["filtered"] > 0
    assert run.total(keys.INTERRUPTED) > 0
    assert run.total("async_dapo/partial/resumed_groups") > 0
    assert run.total(keys.TOKENS_DISCARDED) == 0


def test_given_the_quick_start_when_it_trains_then_it_keeps_a_group_of_each_step_and_answers_of_each_validation(run):
    episodes = read_episodes(run.folder / EPISODES_FILE)
    assert Counter(one.step for one in episodes) == dict.fromkeys(run.steps, 8), "n trajectories of one group"
    for one in episodes:  # whether one of these few groups was interrupted is up to chance
        assert len(set(one.versions)) <= 1 + one.age and list(one.versions) == sorted(one.versions)
        assert max(one.versions) < one.step and max(one.log_probs) <= 0
        assert one.reward in (0.0, 1.0) and one.turns == 1
    # Rounded to thousandths, a short answer of which the model is sure has none but zeros.
    assert min(log_prob for one in episodes for log_prob in one.log_probs) < 0
    answers = read_samples(run.folder / ANSWERS_FILE)
    assert len({one.prompt for one in answers}) == 3 and {one.step for one in answers} == {0, QUICK_STEPS}


def test_given_its_last_checkpoint_when_evaluated_then_the_number_is_that_of_its_own_validation(run):
    said = run_module("tests.support.evaluated", str(run.folder))
    result = json.loads((run.folder / f"evaluation-step-{QUICK_STEPS}.json").read_text())
    (_, accuracy) = run.accuracy()[-1]
    assert result["validation"]["val-core/carry/acc/mean@1"] == result["figures"]["mean@1"] == accuracy
    assert len(result["answers"]) == result["figures"]["prompts"] == QUICK_VALIDATION
    assert f"all: prompts {QUICK_VALIDATION}" in said
    assert "validation begins" in said and "report.html" not in said, "it lies in a folder that is gone"
    assert {answer["source"] for answer in result["answers"]} == {"carry"}
    answers = [answer for answer in result["answers"] if answer["value"]]
    tokens = [answer["length_tok"] for answer in answers]
    assert tokens == [len(answer["expected"]) + 1 for answer in answers], "a character is a token, and the end is one"


@pytest.mark.nightly
def test_given_its_last_checkpoint_when_asked_then_it_answers(run):
    said = run_module("recipe.async_dapo_lab.evaluate", str(run.folder), "--ask", QUESTION)
    assert said.splitlines()[-1].startswith("03:")


@pytest.mark.nightly
def test_given_compare_when_both_have_trained_then_one_is_measured_against_the_other(assets: Assets):
    folder, said = quick_start(assets, "compared", "--compare", "--steps", "3")
    assert "; its steps " in said and " those of verl_sync" in said
    assert 'id="side-by-side"' in Path(folder, "report.html").read_text()
