"""Engines that die at any time on the real stack: training goes on with the others, and ends clearly with the last."""

import json
from functools import partial

import pytest

from ..support.failing_engine.sitecustomize import MESSAGE
from ..support.harness import Run, ledger_closes, train, train_at_once
from ..support.weights_by_hand import WeighedRun, assert_weighed

PROMPTS_PER_STEP = 9  # times 8 trajectories: a multiple of the training ranks, one an engine
END_S = 30.0  # from the death of the last engine to the end of the driver

DEATHS = [
    (1, "round", "server", 2),
    (2, "training", "core", 1),
    (4, "training", "exception", 0),
]


pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory) -> Run:
    """In a process of its own, as who trains adopts orphans: other tests follow in this one."""
    training = partial(
        train,
        assets,
        tmp_path_factory.mktemp("dying"),
        steps=10,
        strategy="partial",
        engines=3,
        overrides=[
            "async_dapo.importance_sampling=balance",
            "actor_rollout_ref.actor.optim.lr=1e-3",  # so that versions differ
            f"data.train_batch_size={PROMPTS_PER_STEP}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS_PER_STEP}",
        ],
        module="tests.support.dying_run",
        environment={"DEATHS": json.dumps(DEATHS)},
        fails=True,
    )
    [run] = train_at_once(training)
    return run


def test_given_dying_engines_when_others_are_left_then_steps_go_on_and_no_prompt_is_lost(run: Run) -> None:
    assert run.metric("async_dapo/load_balancer/servers") == [2, 2, 1]
    assert run.metric("async_dapo/load_balancer/lost_servers") == [1, 1, 2]
    assert all(map(ledger_closes, run.steps))
    assert run.metric("async_dapo/ledger/trained") == [number * PROMPTS_PER_STEP for number in (1, 2, 3)]


def test_given_a_dead_engine_when_the_step_ends_then_none_of_its_processes_is_left(run: Run) -> None:
    notes = [note for note in run.inspections if "left_of_the_dead" in note]
    assert [note["step"] for note in notes] == [1, 2, 3]
    assert all(note["left_of_the_dead"] == [] for note in notes)


def test_given_the_last_engine_when_it_dies_then_the_run_ends_in_time_and_names_it(run: Run) -> None:
    killed_at = [note["at"] for note in run.inspections if "killed" in note]
    log_file = run.folder / "train.log"
    assert len(killed_at) == len(DEATHS) and log_file.stat().st_mtime - killed_at[-1] <= END_S
    log = log_file.read_text(errors="replace")
    assert "no engine is left: engine 2 (node " in log and "trainer.resume_mode=auto" in log
    assert f") died: RuntimeError: {MESSAGE}" in log


def test_given_three_ranks_and_balance_when_they_train_then_weights_are_those_computed_by_hand(run: Run) -> None:
    """Whether a group mixes versions is up to timing here; `test_partial_rollout.py` makes sure of it, on one rank."""
    weighed = WeighedRun(run.folder)
    groups = [(step, group) for step in range(1, 1 + len(run.steps)) for group in weighed.batch(step)]
    assert len(groups) == PROMPTS_PER_STEP * len(run.steps)
    assert_weighed(weighed, groups, mixed=False)
