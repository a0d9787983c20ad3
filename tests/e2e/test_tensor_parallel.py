"""An engine of two tensor parallel ranks on the real stack: every strategy trains with it, and a dead rank ends it. A
run of two engines goes on with it.
"""

import json

import pytest

from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP

from ..support.harness import Run, ledger_closes, train

RANKS = 2
STEPS = 2  # before a rank is killed in the next one's round
TOLERANCE = 1e-4  # of a ratio of probabilities, float32
ENTRY = "recipe.async_dapo.main_async_dapo"
END_S = 60.0  # from the death of the rank to the end of the driver

OVERRIDES = (
    f"actor_rollout_ref.rollout.tensor_model_parallel_size={RANKS}",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp",
    "actor_rollout_ref.actor.optim.lr=1e-3",  # so that versions differ
    "async_dapo.importance_sampling=decoupled",
)
STRATEGIES = [
    "partial",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("discard", "partial_stale_kv", "consistent")),
]


@pytest.fixture(scope="module", params=STRATEGIES)
def run(request, assets, tmp_path_factory) -> Run:
    return train(
        assets,
        tmp_path_factory.mktemp("tensor_parallel"),
        steps=2 * STEPS,
        strategy=request.param,
        engines=RANKS,
        overrides=OVERRIDES,
        module="tests.support.dying_run",
        environment={"DEATHS": json.dumps([(STEPS + 1, "round", "rank", 0)])},
        fails=True,
    )


@pytest.fixture(scope="module")
def ended_at(run: Run) -> float:
    return (run.folder / "train.log").stat().st_mtime


def test_given_two_ranks_when_they_train_then_both_have_the_newest_weights_and_no_prompt_is_lost(run: Run) -> None:
    assert run.metric("async_dapo/load_balancer/servers") == [1] * STEPS
    assert all(map(ledger_closes, run.steps))
    ratios = run.metric("async_dapo/importance/staleness_0/ratio_max")
    assert ratios == pytest.approx([1.0] * STEPS, abs=TOLERANCE)


def test_given_a_dead_rank_when_its_engine_was_the_last_then_the_run_ends_in_time_and_names_it(run, ended_at) -> None:
    [killed] = [note for note in run.inspections if "killed" in note]
    log = (run.folder / "train.log").read_text(errors="replace")
    assert "no engine is left: engine 0 (node " in log and "trainer.resume_mode=auto" in log
    assert ended_at - killed["at"] <= END_S


@pytest.mark.nightly
def test_given_a_checkpoint_of_two_engines_when_resumed_with_one_of_two_ranks_then_it_goes_on(assets, tmp_path) -> None:
    saves = (f"trainer.default_local_dir={tmp_path}/checkpoints", f"trainer.save_freq={STEPS}")
    saves += ("trainer.resume_mode=auto", OVERRIDES[-1])

    def run(name: str, steps: int, *overrides: str) -> Run:
        own = (*saves, *overrides)
        return train(
            assets, tmp_path / name, steps=steps, strategy="partial", module=ENTRY, engines=RANKS, overrides=own
        )

    before, after = run("before", STEPS), run("after", 2 * STEPS, *OVERRIDES)
    assert before.metric("async_dapo/load_balancer/servers") == [RANKS] * STEPS
    assert after.metric("async_dapo/load_balancer/servers") == [1] * STEPS
    trained = [*before.metric("async_dapo/ledger/trained"), *after.metric("async_dapo/ledger/trained")]
    assert trained == [PROMPTS_PER_STEP * (step + 1) for step in range(2 * STEPS)]
    assert all(map(ledger_closes, after.steps))
    ratios = after.metric("async_dapo/importance/staleness_0/ratio_max")
    assert ratios == pytest.approx([1.0] * STEPS, abs=TOLERANCE)
