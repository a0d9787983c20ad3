"""Engines that die on the real stack: training goes on with the other, and ends clearly with the last. Engines of two
tensor parallel ranks, and four training ranks, with --nightly.
"""

from collections.abc import Callable
from functools import partial

import pytest

from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP

from ..support.failing_engine.sitecustomize import MESSAGE
from ..support.harness import STALL_S, Run, ledger_closes, train, train_at_once
from ..support.weights_by_hand import TOLERANCE, WeighedRun, assert_stamped, assert_weighed, versions_of

ENGINES = 2
STEPS = 2  # before the last engine dies in the next one
NEVER_S = 4 * STALL_S  # a run in which anybody waits for one of its limits is taken for one that hangs

PARTS = {1: "core", 2: "rank"}  # which dies, by the ranks of an engine
# A dead rank takes its core with it; `test_separate.py` kills a server.
DEATHS = {ranks: [(1, "round", part, 1), (STEPS + 1, "training", "exception", 0)] for ranks, part in PARTS.items()}
TWO_RANKS = (
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp",
)
VERSIONS_DIFFER = "actor_rollout_ref.actor.optim.lr=1e-3"
STRATEGIES = ("partial", "discard", "partial_stale_kv", "consistent")
RUNS = [("partial", 1), *(pytest.param((name, 2), marks=pytest.mark.nightly) for name in STRATEGIES)]


@pytest.fixture(scope="module", params=RUNS, ids=str)
def run(request, assets, tmp_path_factory) -> Run:
    strategy, ranks = request.param
    training = partial(
        train,
        assets,
        tmp_path_factory.mktemp(f"dying_{strategy}_{ranks}"),
        steps=2 * STEPS,
        strategy=strategy,
        engines=ENGINES * ranks,  # as many training ranks
        overrides=(
            *(TWO_RANKS if ranks == 2 else ()),
            VERSIONS_DIFFER,
            "async_dapo.importance_sampling=mixture",
            "data.max_response_length=96",  # several ranks compute on two cores
            f"async_dapo.engine_timeout_s={NEVER_S}",
            f"async_dapo.round_timeout_s={NEVER_S}",
        ),
        switches={"deaths": DEATHS[ranks]},
        fails=True,
    )
    return in_a_process_of_its_own(training)


def in_a_process_of_its_own(training: Callable[[], Run]) -> Run:
    """Who trains adopts orphans, and other tests follow in this process."""
    [run] = train_at_once(training)
    return run


def test_given_a_dead_core_when_another_engine_is_left_then_steps_go_on_and_no_prompt_is_lost(run: Run) -> None:
    """It may take longer to be noticed than the round takes, but not longer than the step."""
    servers, lost = (run.metric(f"async_dapo/load_balancer/{name}") for name in ("servers", "lost_servers"))
    assert len(servers) == STEPS and all(a + b == ENGINES for a, b in zip(servers, lost, strict=True))
    assert (servers[-1], lost[-1]) == (ENGINES - 1, 1)
    assert all(map(ledger_closes, run.steps))
    assert run.metric("async_dapo/ledger/trained") == [PROMPTS_PER_STEP, 2 * PROMPTS_PER_STEP]


def test_given_a_dead_engine_when_the_step_ends_then_none_of_its_processes_is_left(run: Run) -> None:
    notes = run.noted("left_of_the_dead")
    assert [note["step"] for note in notes] == [1, 2]
    assert all(note["left_of_the_dead"] == [] for note in notes)


def test_given_the_last_engine_when_it_dies_then_the_run_ends_without_waiting_for_a_limit_and_names_it(
    run: Run,
) -> None:
    assert len(run.noted("killed")) == 2
    log = (run.folder / "train.log").read_text(errors="replace")
    last = next(line for line in reversed(log.splitlines()) if "no engine is left: engine 1 (node " in line)
    assert "; engine 0 (node " in last and f") died: RuntimeError: {MESSAGE}" in last
    assert "trainer.resume_mode=auto" in last


def test_given_several_training_ranks_when_they_train_then_weights_and_log_probs_are_those_computed_by_hand(
    run: Run,
) -> None:
    """All ranks of an engine have the newest weights. Whether a group mixes versions is up to timing here;
    `test_partial_rollout.py` makes sure of it, on one rank."""
    weighed = WeighedRun(run.folder)
    groups = [(step, group) for step in range(1, STEPS + 2) for group in weighed.batch(step)]
    assert len(groups) == PROMPTS_PER_STEP * (STEPS + 1)
    assert_weighed(weighed, groups)
    rows = [(step, row) for step, group in groups for row in group]
    if "stale_kv" in run.folder.name:  # no version computes afresh what goes on with older keys and values
        rows = [(step, row) for step, row in rows if versions_of([row]) == {step - 1}]
    assert_stamped(weighed, rows)
    [*_, (newest, [row, *_])] = groups
    first, last = (weighed.log_softmax(row, version) for version in (0, newest - 1))
    assert (first - last).abs().max() > 10 * TOLERANCE, "versions hardly differ: the test shows nothing"


@pytest.mark.nightly
def test_given_a_checkpoint_of_two_engines_when_resumed_with_one_of_two_ranks_then_it_goes_on(assets, tmp_path) -> None:
    saves = (f"trainer.default_local_dir={tmp_path}/checkpoints", f"trainer.save_freq={STEPS}")
    saves += ("trainer.resume_mode=auto", VERSIONS_DIFFER, "async_dapo.importance_sampling=decoupled")

    def run(name: str, steps: int, *overrides: str) -> Run:
        own = (*saves, *overrides)
        return train(
            assets,
            tmp_path / name,
            steps=steps,
            strategy="partial",
            module="recipe.async_dapo.main_async_dapo",
            engines=2,
            overrides=own,
        )

    before, after = run("before", STEPS), run("after", 2 * STEPS, *TWO_RANKS)
    assert before.metric("async_dapo/load_balancer/servers") == [2] * STEPS
    assert after.metric("async_dapo/load_balancer/servers") == [1] * STEPS
    trained = [*before.metric("async_dapo/ledger/trained"), *after.metric("async_dapo/ledger/trained")]
    assert trained == [PROMPTS_PER_STEP * (step + 1) for step in range(2 * STEPS)]
    assert all(map(ledger_closes, after.steps))
    ratios = after.metric("async_dapo/importance/staleness_0/ratio_max")
    assert ratios == pytest.approx([1.0] * STEPS, abs=1e-4)
