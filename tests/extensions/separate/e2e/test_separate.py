"""Engines on GPUs of their own, on the real stack: they generate while the trainer trains, get weights one by one, die
and are replaced; and a run that is killed goes on from its checkpoint (with --nightly).
"""

from functools import partial
from typing import Any

import pytest

from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP, RESPONSES_PER_PROMPT
from recipe.async_dapo_lab.train import RECORDER

from ....support.harness import Run, ledger_closes, train
from ....support.weights_by_hand import TOLERANCE, WeighedRun, assert_stamped

ENGINES = 2
SAVED_STEP, KILLED_STEP, LAST_STEP = 2, 3, 6
REJOIN_AT = SAVED_STEP + 2  # the second engine dies a step before, which is the first one of a second life
MAX_STALENESS = 4

OVERRIDES = (
    "async_dapo.placement=separate",
    f"async_dapo.recorder={RECORDER}",
    f"async_dapo.max_staleness={MAX_STALENESS}",
    "async_dapo.importance_sampling=mixture",  # the weights of each version are kept, to compute by hand with them
    "actor_rollout_ref.actor.optim.lr=1e-3",  # so that versions differ by far more than the tolerance
    "actor_rollout_ref.rollout.nnodes=1",
    f"actor_rollout_ref.rollout.n_gpus_per_node={ENGINES}",
    "actor_rollout_ref.rollout.max_num_seqs=4",  # so that engines are slower than the trainer, and always at work
    f"++ray_kwargs.ray_init.num_gpus={1 + ENGINES}",
    f"ray_kwargs.ray_init.num_cpus={16 + 4 * ENGINES}",
    f"trainer.save_freq={SAVED_STEP}",
    "trainer.resume_mode=auto",
)

KILLED = ["partial_stale_kv", "consistent"]  # runs of two lives


@pytest.fixture(scope="module", params=["partial", *(pytest.param(name, marks=pytest.mark.nightly) for name in KILLED)])
def strategy(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory, strategy: str) -> Run:
    life = partial(
        train,
        assets,
        tmp_path_factory.mktemp(strategy),
        steps=LAST_STEP,
        strategy=strategy,
        overrides=OVERRIDES,
    )
    if strategy in KILLED:
        life(kill_at=KILLED_STEP)
    return life(switches={"deaths": [(SAVED_STEP + 1, "training", "server", 1)], "rejoin_at": REJOIN_AT})


@pytest.fixture(scope="module")
def steps(run: Run) -> list[dict[str, Any]]:
    """What was written down of each step that counts: of those before a kill, the ones that the checkpoint has."""
    notes = run.inspections
    resumed = next((i for i in range(1, len(notes)) if notes[i]["step"] <= notes[i - 1]["step"]), 0)
    return [note for note in notes[:resumed] if note["step"] <= SAVED_STEP] + notes[resumed:]


def test_given_engines_of_their_own_when_steps_train_then_each_has_b_groups_of_n_and_none_twice(run, steps):
    assert [note["step"] for note in steps] == list(range(1, LAST_STEP + 1))
    uids = [uid for note in steps for uid in note["uids"]]
    assert len(uids) == len(set(uids)) == LAST_STEP * PROMPTS_PER_STEP
    assert all(note["trajectories"] == PROMPTS_PER_STEP * RESPONSES_PER_PROMPT for note in steps)
    assert all(ledger_closes(step) for step in run.steps)


def test_given_a_trainer_that_trains_then_engines_generate_meanwhile(run):
    """Each step makes room for groups to begin, which engines do not end before a batch is taken. Where they are the
    faster ones, they have ended them before the update.
    """
    inflight = [note["most_inflight_in_training"] for note in run.noted("most_inflight_in_training")]
    assert len(inflight) >= LAST_STEP and sum(requests > 0 for requests in inflight) >= len(inflight) / 2


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", KILLED, indirect=True)
def test_given_a_kill_after_a_checkpoint_when_training_resumes_then_what_was_generated_before_is_trained(steps):
    """Engines of the second life begin with the weights of the checkpoint: older tokens are those that it held."""
    first_resumed = next(note for note in steps if note["step"] == SAVED_STEP + 1)
    assert min(version for segments in first_resumed["spans"] for version, _ in segments) < SAVED_STEP


def test_given_tokens_of_any_version_when_that_version_computes_them_then_log_probs_are_the_engines(run, steps):
    """Each token's version is that of the weights which its engine had: the proof of every transfer is true."""
    weighed = WeighedRun(run.folder)
    rows = [(note["step"], row) for note in steps for row in weighed.batch(note["step"])[0][:4]]
    assert assert_stamped(weighed, rows) > 10 * TOLERANCE, "versions hardly differ: the test shows nothing"


def test_given_weights_that_reach_engines_one_by_one_when_they_train_then_no_token_is_too_old(steps, strategy):
    for note in steps:
        versions = [version for segments in note["spans"] for version, _ in segments]
        assert note["step"] - 1 - min(versions) <= MAX_STALENESS
        if strategy == "consistent":
            assert all(len({version for version, _ in segments}) == 1 for segments in note["spans"])


def test_given_an_engine_that_dies_when_its_gpu_is_free_then_another_one_joins_with_newer_weights(run):
    [death] = run.noted("killed")
    [rejoined] = [note["rejoined"] for note in run.noted("rejoined")]
    assert len(rejoined) == ENGINES and min(rejoined.values()) >= death["step"]
    assert run.metric("async_dapo/load_balancer/lost_servers")[-1] == 1
    assert run.metric("async_dapo/load_balancer/servers")[-1] == ENGINES
