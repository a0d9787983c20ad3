"""verl's tool agent loop and a custom one on the real stack: interrupted in turns, in calls and between, and resumed.

Under `partial`, CoPRIS's fixed concurrency and the limit of tokens a round act as well, the learning rate is 0, and
the run is killed once: what is greedy must come out as in the validation, which nothing interrupts.

Nightly: in every run of the tests the gateway's training has loops with a state and recorded calls, which are made once
over stops and a kill, one of them under way at each stop, and what its loops sample is compared token by token.
`tests/e2e/test_two_nodes.py` has verl's loop with a tool, which nothing interrupts;
`tests/e2e/test_partial_rollout.py` the limit of tokens. `coroutines/` of this extension plays sandboxes and kept loops
at every moment; that of `tools`, verl's loop and tools.
"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from recipe.async_dapo_lab.quickstart.model_and_data import Assets

from ....support import next_problem, till
from ....support.harness import Run, ledger_closes, train

pytestmark = pytest.mark.nightly

STEPS = 4
KILLED_STEP = 2
PROMPTS_PER_STEP = 4  # half of the quick start's: the first step waits for groups that end under the limit
HELD = 16  # groups when a round begins: most of them have not ended when four are valid, however fast the machine is
POOL_SIZE = 64  # trajectories at once: all of these groups
ROUND_LIMIT_TOK = 265  # of 296 that a trajectory may generate: enough groups end within it, and many are set aside
PROMPTS = 40  # few, so that all that are trained have been validated
SANDBOX = "pieces.put(line)"  # in the command of a sandbox's process
TOLERANCE = 1e-4  # nats, float32
END_S = 60.0

OF_ROUNDS = (
    f"async_dapo.rollout_pool_size={POOL_SIZE}",
    f"async_dapo.over_sampling_batch_size={HELD}",
)
LIMITS: dict[str, tuple[str, ...]] = {
    # Of eight responses one is nearly always over the limit, and the first step trains on whole groups.
    "partial": (
        *OF_ROUNDS,
        f"async_dapo.max_tokens_per_round={ROUND_LIMIT_TOK}",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.optim.lr=0",
    ),
    "partial_stale_kv": OF_ROUNDS,
}
VALIDATED = (
    "trainer.val_before_train=True",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=False",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0",
)
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    score = float(sum(map(ord, solution_str)) % 2)  # half of the answers are right: most groups are valid
    return {"score": score, "acc": score}
"""
AGENT_LOOPS = """
- name: next_problem_loop
  _target_: tests.support.tool_agent.NextProblemLoop
"""
STOP = "  stop: ['01:']\n"  # which begins the last line of most answers; refused with KV in host memory


KILLED = pytest.mark.parametrize("run", ["partial"], indirect=True)


@pytest.fixture(scope="module", params=[*LIMITS])
def run(request, assets, tmp_path_factory) -> Run:
    return start(assets, tmp_path_factory.mktemp(f"multi_turn_{request.param}"), request.param)


def start(assets: Assets, folder: Path, strategy: str) -> Run:
    (folder / "reward.py").write_text(REWARD)
    (folder / "loops.yaml").write_text(AGENT_LOOPS + STOP * (strategy == "partial"))
    pd.read_parquet(assets.train_file).head(PROMPTS).to_parquet(folder / "prompts.parquet")
    rollout = "actor_rollout_ref.rollout"
    overrides = (
        f"data.train_batch_size={PROMPTS_PER_STEP}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS_PER_STEP}",
        "trainer.save_freq=1",
        "trainer.resume_mode=auto",
        "async_dapo.importance_sampling=decoupled",
        f"data.train_files={folder}/prompts.parquet",
        f"data.val_files={folder}/prompts.parquet",
        f"reward.custom_reward_function.path={folder}/reward.py",
        f"{rollout}.agent.agent_loop_config_path={folder}/loops.yaml",
        f"{rollout}.agent.default_agent_loop=next_problem_loop",
        f"{rollout}.multi_turn.function_tool_path={Path(next_problem.__file__)}",
        f"{rollout}.multi_turn.format=every_response_calls",
        f"{rollout}.multi_turn.max_assistant_turns=3",
        *LIMITS[strategy],
    )
    life = partial(train, assets, folder, steps=STEPS, strategy=strategy, environment={till.FOLDER: str(folder)})
    if strategy == "partial":
        life(overrides=(*overrides, *VALIDATED), kill_at=KILLED_STEP)
    return life(overrides=overrides)


def loops(run: Run) -> list[dict[str, Any]]:
    """How the agent loops of a run were interrupted, and what they came to, in order."""
    return till.lines(run.folder / till.DIARY)


def test_given_two_loops_when_they_are_interrupted_then_they_go_on_and_nothing_is_thrown_away(run: Run):
    assert sum(run.metric("async_dapo/partial/resumed_groups")) > 0
    assert sum(run.metric("async_dapo/tokens/discarded")) == sum(run.metric("async_dapo/partial/diverged_tokens")) == 0
    assert sum(run.metric("async_dapo/failure/groups")) == 0
    versions = [len({version for version, _ in spans}) for record in run.inspections for spans in record["spans"]]
    assert max(versions) > 1, "no trajectory has tokens of two versions"


def test_given_several_turns_when_trained_then_the_tool_s_tokens_are_masked_and_log_probs_are_the_engine_s(run: Run):
    assert {record["step"] for record in run.inspections} == set(range(1, STEPS + 1))
    assert all(record["unsampled_tok"] > 0 for record in run.inspections), "no tool has answered"
    # With the KV cache of older weights, the newest ones sample from what no version computes afresh.
    comparable = run.inspections[:1] if "stale_kv" in run.folder.name else run.inspections
    assert all(record["max_diff_newest"] < TOLERANCE for record in comparable)


def test_given_calls_that_take_money_when_rounds_stop_under_them_then_each_is_paid_once(run: Run):
    """Over a kill, too: what nobody knew of after it was asked of the tool. A server that died under a call took money
    for it, and the loop was told of the error."""
    charges = till.lines(run.folder / till.LEDGER)
    paid = Counter(charge["call"] for charge in charges)
    assert set(paid.values()) == {1}
    by_function = Counter(call.split("/")[3] for call in paid)
    assert by_function.keys() == {"next_problem", "pay"} and min(by_function.values()) > PROMPTS_PER_STEP
    assert any(charge["died"] for charge in charges), "no call has killed the server"
    assert sum(run.metric("async_dapo/calls/carried")) > 0, "no call outlived its round"
    assert sum(run.metric("async_dapo/partial/diverged_tokens")) == 0


@KILLED
def test_given_loops_that_died_with_their_run_when_it_goes_on_then_calls_are_answered_from_the_record(run: Run):
    assert sum(run.metric("async_dapo/calls/replayed")) > 0


def test_given_a_run_then_its_loops_were_interrupted_more_than_fifty_times(run: Run):
    interrupted = Counter(loop["is_own"] for loop in loops(run) if not loop["is_end"])
    assert interrupted.total() > 50 and min(interrupted[True], interrupted[False]) > 10


@KILLED
def test_given_one_policy_at_temperature_0_when_interrupted_then_every_token_is_as_if_nothing_had_happened(run: Run):
    interrupted = {(loop["uid"], loop["session"]) for loop in loops(run) if not loop["is_end"]}
    ended = [loop for loop in loops(run) if loop["is_end"] and loop["is_own"]]
    validated, trained = ended[:PROMPTS], ended[PROMPTS:]
    expected = {tuple(loop["prompt"]): loop["response"] for loop in validated}
    assert not interrupted & {(loop["uid"], loop["session"]) for loop in validated}
    assert [loop for loop in trained if loop["response"] != expected[tuple(loop["prompt"])]] == []
    resumed = [loop for loop in trained if (loop["uid"], loop["session"]) in interrupted]
    assert len(resumed) > 10


@KILLED
def test_given_room_for_all_loops_when_rounds_stop_then_they_stay_alive(run: Run):
    kept = run.metric("async_dapo/calls/kept_loops")
    assert max(kept) > 0 and sum(run.metric("async_dapo/calls/lost_loops")) == 0


def test_given_loops_with_a_process_each_when_rounds_stop_then_it_goes_on_or_another_is_brought_to_where_it_was(
    run: Run,
):
    """What one has lost would be a failure, see above; none outlives its worker, killed or not."""
    told = till.lines(run.folder / till.PROCESSES)
    began_with = {one["pid"]: one["pieces"] for one in reversed(told)}
    assert max(Counter(one["pid"] for one in told).values()) > 1
    if "stale_kv" not in run.folder.name:
        assert max(began_with.values()) > 1, "none had to be built again"
    processes = [one for one in psutil.process_iter(["cmdline"]) if one.pid in began_with]
    left = [one for one in processes if SANDBOX in " ".join(one.info["cmdline"] or [])]  # else the number is another's
    _, alive = psutil.wait_procs(left, timeout=END_S)  # one ends as soon as it reads that its worker has
    assert not alive


@pytest.mark.parametrize("run", ["partial_stale_kv"], indirect=True)
def test_given_stale_kv_when_requests_go_on_under_new_weights_then_their_kv_is_found_in_host_memory(run: Run):
    assert sum(run.metric("async_dapo/partial/found_tokens")) > 0


def test_given_a_strategy_when_it_trains_then_the_ledger_closes(run: Run):
    assert all(map(ledger_closes, run.steps))
    assert run.steps[-1]["async_dapo/ledger/trained"] == STEPS * PROMPTS_PER_STEP


@KILLED
def test_given_limits_when_trained_then_they_hold(run: Run):
    assert 0 < max(run.metric("async_dapo/load_balancer/inflight/max")) <= POOL_SIZE
    generated = [count for record in run.inspections for spans in record["spans"] for _, count in spans]
    assert 0 < max(generated) <= ROUND_LIMIT_TOK, "a segment is what a trajectory generates in one round"
