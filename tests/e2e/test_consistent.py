"""Strategy `consistent` on the real stack."""

import pytest

from recipe.async_dapo.cpu.overrides import PROMPTS_PER_STEP

from ..support.harness import Run, ledger_closes, train

STEPS = 4


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory) -> Run:
    return train(assets, tmp_path_factory.mktemp("consistent"), steps=STEPS, strategy="consistent")


def test_given_consistent_rollout_when_it_trains_then_every_trajectory_is_of_one_version(run: Run):
    assert {len(spans) for record in run.inspections for spans in record["spans"]} == {1}
    assert set(run.metric("async_dapo/early_stop/interrupted_groups")) == {0.0}
    assert set(run.metric("async_dapo/tokens/discarded")) == {0.0}


def test_given_consistent_rollout_when_it_trains_then_the_ledger_closes(run: Run):
    assert all(map(ledger_closes, run.steps))
    assert run.steps[-1]["async_dapo/ledger/trained"] == STEPS * PROMPTS_PER_STEP


def test_given_a_run_with_its_own_ray_when_it_trains_then_no_other_machine_can_reach_it(run: Run):
    assert run.doors.listening > 10, "nothing was seen"
    assert not run.doors.reachable


def test_given_secrets_in_the_environment_when_it_trains_then_no_file_of_the_run_holds_one(run: Run):
    assert not run.doors.told
