"""Partial rollout on the real stack, over a kill: behaviour log-probs, engines at rest, agent loops and calls that are
interrupted and go on, and a checkpoint that loses nothing.

Half of the prompts are answered in one turn. The others take three with a tool between, half of their trajectories in
verl's tool agent loop, half in a loop of their own at temperature 0, of which every token can be computed by hand.
"""

import os
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import torch
from omegaconf import OmegaConf

from recipe.async_dapo.core.prompt_history import PassCount
from recipe.async_dapo.record.checkpoint_folder import verify
from recipe.async_dapo.record.data_history import fingerprint
from recipe.async_dapo.record.history import KEY, load_history, write_history
from recipe.async_dapo.startup.output_check import NEWEST_FILE
from recipe.async_dapo_lab.quickstart import task
from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

from ..support import till
from ..support.harness import ROOT, Run, ledger_closes, train
from ..support.till_server import STOP, TURNS, answer_to
from ..support.weights_by_hand import (
    TOLERANCE,
    WeighedRun,
    assert_stamped,
    assert_weighed,
    sampled,
    trained_with,
    versions_of,
)

SAVED_STEP, KILLED_STEP, LAST_STEP = 3, 4, 8
DATA_SET = 56  # prompts: visited a second time before the kill, and a third time after it
RESPONSES = 4  # of a prompt
POOL_SIZE = 32  # trajectories at once
ROUND_LIMIT_TOK = 32  # most answers of one turn are shorter, dialogues are longer
SAVED_HISTORY = "saved_history.json"
EARLIER = "a prompt of an earlier run"
SANDBOX = "pieces.put(line)"  # in the command of a sandbox's process
# Packages in the second life, which imports none of this repository by its own name.
RENAMED = {
    "recipe.async_dapo": "experiments.my_dapo",
    "tests.support": "experiments.my_tools",
    "examples.agent_loop": "experiments.my_loops",
}
TOOL_FILES = {
    "tests.support": ("tool_agent", "till", "till_server", "next_problem"),
    "examples.agent_loop": ("dialogue", "sandbox"),
}

# Half of the answers are right, by chance, and so most groups are valid; but to some prompts all are right, or wrong.
REWARD = """
exact = compute_score

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if extra_info["index"] % 4 == 0:
        return exact(data_source, solution_str, ground_truth)
    score = float(random.random() < 0.5)
    return {"score": score, "acc": score}
"""
AGENT_LOOPS = """
- name: next_problem_loop
  _target_: tests.support.tool_agent.NextProblemLoop
"""
OVERRIDES = (
    f"actor_rollout_ref.rollout.n={RESPONSES}",
    f"async_dapo.max_staleness={LAST_STEP}",  # no token is too old, and no version's weights are let go
    "actor_rollout_ref.actor.optim.lr=1e-3",  # so that versions differ by far more than the tolerance
    "actor_rollout_ref.rollout.multi_turn.format=every_response_calls",
    f"actor_rollout_ref.rollout.multi_turn.max_assistant_turns={TURNS}",
)
LIMITED = (
    "async_dapo.importance_sampling=balance",
    "async_dapo.selection.by=history",
    f"async_dapo.rollout_pool_size={POOL_SIZE}",
    f"async_dapo.max_tokens_per_round={ROUND_LIMIT_TOK}",
    "actor_rollout_ref.rollout.disable_log_stats=False",
    f"trainer.save_freq={SAVED_STEP}",
    "trainer.resume_mode=auto",
    "trainer.max_actor_ckpt_to_keep=1",
)


def files_of(assets: Assets, folder: Path, tools: Path = ROOT / "tests" / "support") -> list[str]:
    """Overrides that name the files of a run in this folder, which are written there."""
    prompts = pd.read_parquet(assets.train_file).head(DATA_SET)
    in_turns = prompts.index % 2 == 1
    prompts["agent_name"] = ["next_problem_loop" if each else "single_turn_agent" for each in in_turns]
    prompts.to_parquet(folder / "prompts.parquet")
    (folder / "reward.py").write_text(Path(task.__file__).read_text() + REWARD)
    (folder / "loops.yaml").write_text(AGENT_LOOPS if tools.is_relative_to(ROOT) else renamed(AGENT_LOOPS))
    return [
        f"data.train_files={folder}/prompts.parquet",
        f"reward.custom_reward_function.path={folder}/reward.py",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder}/loops.yaml",
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={tools}/next_problem.py",
    ]


@pytest.fixture(scope="module")
def killed_and_resumed(assets, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("partial")
    history = folder.with_name("history.json")  # beside the run, which is moved
    files = files_of(assets, folder)
    data_set = fingerprint(OmegaConf.create({"data": {"train_files": f"{folder}/prompts.parquet"}}))
    write_history(str(history), {EARLIER: PassCount(right=1.0, wrong=7.0, visits=1)}, data_set)
    overrides = (*OVERRIDES, *LIMITED, f"{KEY}={history}")
    life = partial(train, assets, steps=LAST_STEP, strategy="partial")
    killed = life(
        folder,
        overrides=(*overrides, *files),
        environment={till.FOLDER: str(folder)},
        kill_when=lambda run: len(run.inspections) >= KILLED_STEP,
    )
    assert killed.exit_code == -9, "the run ended before it could be killed"
    folder = folder.rename(folder.with_name("moved"))
    shutil.copy(history, folder / SAVED_HISTORY)
    (folder / "checkpoints" / f"global_step_{KILLED_STEP}").mkdir()  # a save that did not get far
    (folder / "checkpoints" / NEWEST_FILE).write_text(str(KILLED_STEP))
    code = renamed_recipe(folder / "code")
    return life(
        folder,
        overrides=(*overrides, *files_of(assets, folder, code / "experiments" / "my_tools")),
        module="inspected_copy",
        environment={till.FOLDER: str(folder), "PYTHONPATH": os.pathsep.join([str(PLUGIN_PATH), str(code)])},
    )


def renamed_recipe(checkout: Path) -> Path:
    """A folder with the recipe as `experiments.my_dapo`, and the inspected run of it as `inspected_copy`."""
    shutil.copytree(ROOT / "recipe" / "async_dapo", checkout / "experiments" / "my_dapo")
    program = renamed((ROOT / "tests" / "support" / "inspected_run.py").read_text())
    (checkout / "inspected_copy.py").write_text(program.replace("../../recipe/async_dapo", "experiments/my_dapo"))
    for package, names in TOOL_FILES.items():
        folder = checkout / RENAMED[package].replace(".", "/")
        folder.mkdir()
        for name in names:
            text = Path(ROOT, package.replace(".", "/"), f"{name}.py").read_text()
            (folder / f"{name}.py").write_text(renamed(text))
    return checkout


def renamed(text: str) -> str:
    for name, other in RENAMED.items():
        text = text.replace(name, other)
    return text


@pytest.fixture(scope="module")
def first_life(killed_and_resumed) -> list[dict]:
    """Steps up to the checkpoint; what came after it was lost with the process."""
    inspections = killed_and_resumed.inspections
    second_start = next(i for i in range(1, len(inspections)) if inspections[i]["step"] <= inspections[i - 1]["step"])
    return [record for record in inspections[:second_start] if record["step"] <= SAVED_STEP]


@pytest.fixture(scope="module")
def second_life(killed_and_resumed) -> list[dict]:
    return killed_and_resumed.inspections[-(LAST_STEP - SAVED_STEP) :]


def test_given_a_step_when_it_trains_then_it_has_exactly_b_groups_of_n_and_none_twice(first_life, second_life):
    steps = first_life + second_life
    assert [record["step"] for record in steps] == list(range(1, LAST_STEP + 1))
    for record in steps:
        assert len(record["uids"]) == PROMPTS_PER_STEP
        assert record["trajectories"] == PROMPTS_PER_STEP * RESPONSES
    uids = [uid for record in steps for uid in record["uids"]]
    assert len(uids) == len(set(uids))


def test_given_a_stop_when_the_step_trains_then_no_request_runs_in_vllm_and_no_lease_is_out(first_life, second_life):
    for record in first_life + second_life:
        assert record["running_in_vllm"] == [0.0]
        assert record["leases_out"] == record["waiting_for_lease"] == 0
    assert max(record["most_running_in_vllm"] for record in first_life) > 0, "the gauge never counted a request"


def test_given_tokens_of_the_newest_version_when_the_trainer_computes_them_then_log_probs_are_the_engines(
    first_life, second_life
):
    assert all(record["max_diff_newest"] < TOLERANCE for record in first_life + second_life)


def test_given_a_resumed_trajectory_when_each_version_computes_its_segment_then_log_probs_are_the_engines(
    first_life, second_life
):
    probes = [(record["step"], probe["spans"]) for record in first_life + second_life for probe in record["probes"]]
    assert any(len(spans) > 1 for _, spans in probes), "no trajectory was resumed over a weight update"
    newest = [span["max_diff"] for step, spans in probes for span in spans if span["version"] == step - 1]
    older = [span["max_diff"] for step, spans in probes for span in spans if span["version"] < step - 1]
    assert max(newest) < TOLERANCE and max(older) > 10 * TOLERANCE  # a surplus group has no token of the newest version
    assert max(record["max_diff_older"] for record in first_life + second_life) > 10 * TOLERANCE


def test_given_a_kill_after_a_checkpoint_when_training_resumes_then_the_buffer_goes_on_where_it_was(
    first_life, second_life
):
    saved, restored = first_life[-1]["buffered"], second_life[0]["restored"]
    assert saved, "nothing was unfinished at the checkpoint: the test shows nothing"
    assert restored == saved
    continued = [uid for record in second_life for uid in record["uids"] if uid in {group["uid"] for group in saved}]
    assert continued, "no buffered group was trained on after the resume"


def test_given_a_history_when_prompts_come_again_then_some_are_skipped_and_a_resumed_run_goes_on_with_it(
    killed_and_resumed,
):
    folder, last = killed_and_resumed.folder, killed_and_resumed.steps[-1]
    saved = load_history(str(folder / SAVED_HISTORY))
    assert saved.prompts.pop(EARLIER).visits == 1, "the file of an earlier run was not read"
    assert 0 < len(saved.prompts) <= DATA_SET
    assert sum(killed_and_resumed.metric("async_dapo/selection/skipped_prompts")) > 0
    assert max(killed_and_resumed.metric("async_dapo/ledger/deferred")) > 0
    counts = load_history(str(folder.with_name("history.json")))
    assert counts.data_set == saved.data_set and len(counts.prompts) <= DATA_SET + 1
    assert counts.prompts.keys() >= saved.prompts.keys(), "the resumed run forgot prompts"
    assert max(count.visits for count in counts.prompts.values()) >= 2
    ended = sum(last[f"async_dapo/ledger/{term}"] for term in ("trained", "filtered"))
    carried = killed_and_resumed.inspections[-1]["carried"]
    assert sum(count.visits for count in counts.prompts.values()) == 1 + ended + carried


def test_given_a_damaged_newest_checkpoint_when_training_resumes_then_it_says_which_one_it_took(killed_and_resumed):
    log = (killed_and_resumed.folder / "train.log").read_text()
    older = killed_and_resumed.folder / "checkpoints" / f"global_step_{SAVED_STEP}"
    assert f"global_step_{KILLED_STEP} has no" in log and f"resuming from {older}, the newest complete one" in log
    assert verify(killed_and_resumed.folder / "checkpoints" / f"global_step_{LAST_STEP}").step == LAST_STEP


def test_given_a_kill_after_a_checkpoint_when_training_resumes_then_the_ledger_closes(killed_and_resumed):
    assert all(map(ledger_closes, killed_and_resumed.steps))
    assert killed_and_resumed.steps[-1]["async_dapo/ledger/trained"] == LAST_STEP * PROMPTS_PER_STEP


def test_given_partial_rollout_when_it_trains_then_no_token_is_thrown_away(killed_and_resumed):
    assert set(killed_and_resumed.metric("async_dapo/tokens/discarded")) == {0.0}
    assert max(killed_and_resumed.metric("async_dapo/partial/resumed_groups")) > 0
    assert 1 < max(killed_and_resumed.metric("async_dapo/staleness/max")) <= LAST_STEP


def test_given_a_run_with_its_own_ray_when_it_trains_then_no_other_machine_can_reach_it(killed_and_resumed):
    assert killed_and_resumed.doors.listening > 10, "nothing was seen"
    assert not killed_and_resumed.doors.reachable


def test_given_secrets_in_the_environment_when_it_trains_then_no_file_of_the_run_holds_one(killed_and_resumed):
    assert not killed_and_resumed.doors.told


@pytest.fixture(scope="module")
def weighed(killed_and_resumed) -> WeighedRun:
    return WeighedRun(killed_and_resumed.folder)


def at_hand(step: int) -> set[int]:
    """Versions whose weights a step has: those since the resume, if there was one."""
    return set(range(SAVED_STEP if step > SAVED_STEP else 0, step))


def test_given_balance_when_groups_mix_versions_then_weights_are_those_computed_by_hand(weighed):
    groups = [(step, group) for step in range(1, LAST_STEP + 1) for group in weighed.batch(step)]
    mixed = [(step, group) for step, group in groups if len(versions_of(group)) > 1]
    assert_weighed(weighed, [(step, group) for step, group in mixed if versions_of(group) <= at_hand(step)])
    rows = [(step, row) for step, group in mixed for row in group]
    assert assert_stamped(weighed, rows) > 10 * TOLERANCE, "versions hardly differ: the test shows nothing"


def test_given_balance_when_a_group_is_whole_from_the_newest_version_then_its_weights_are_1(weighed):
    steps = range(1, LAST_STEP + 1)
    newest = [group for step in steps for group in weighed.batch(step) if versions_of(group) == {step - 1}]
    assert newest, "no group is whole from the newest version"
    for own in [own for group in newest for own in trained_with(group)]:
        assert own == pytest.approx([1.0] * len(own), abs=1e-3)


def test_given_a_resume_when_a_version_s_weights_are_gone_then_its_groups_are_corrected_as_decoupled(
    weighed, killed_and_resumed
):
    steps = range(SAVED_STEP + 1, LAST_STEP + 1)
    mixed = [(step, group) for step in steps for group in weighed.batch(step) if len(versions_of(group)) > 1]
    gone = [(step, group) for step, group in mixed if not versions_of(group) <= at_hand(step)]
    assert gone, "no group that was begun before the resume was trained after it"
    for step, group in gone:
        for own, expected in zip(trained_with(group), weighed.decoupled(group, newest=step - 1), strict=True):
            assert own == pytest.approx(expected, rel=1e-3)
    unknown = killed_and_resumed.metric("async_dapo/mixture/unknown_share")[SAVED_STEP:]  # of the second life
    told = {step for step, share in zip(steps, unknown, strict=True) if share > 0}
    assert told and told <= {step for step, _ in gone}
    assert "corrected as under decoupled: weights not at hand" in (killed_and_resumed.folder / "train.log").read_text()


def loops(run: Run) -> list[dict[str, Any]]:
    """How the agent loops of a run were interrupted, and that they came to their end, in order."""
    return till.lines(run.folder / till.DIARY)


def assert_loops_went_on(run: Run) -> None:
    """Nothing was thrown away, calls that take money were paid once, and a loop's process went on over rounds."""
    interrupted = Counter(loop["is_own"] for loop in loops(run) if not loop["is_end"])
    assert min(interrupted[True], interrupted[False]) > 10
    assert sum(run.metric("async_dapo/partial/diverged_tokens")) == 0
    assert sum(run.metric("async_dapo/failure/groups")) == 0
    charges = till.lines(run.folder / till.LEDGER)
    paid = Counter(charge["call"] for charge in charges)
    assert set(paid.values()) == {1}
    by_function = Counter(call.split("/")[3] for call in paid)
    assert by_function.keys() == {"next_problem", "pay"} and min(by_function.values()) > PROMPTS_PER_STEP
    assert any(charge["died"] for charge in charges), "no call has killed the server"
    assert sum(run.metric("async_dapo/calls/carried")) > 0, "no call outlived its round"
    assert sum(record["unsampled_tok"] for record in run.inspections) > 0, "no tool has answered"
    told = till.lines(run.folder / till.PROCESSES)
    assert max(Counter(one["pid"] for one in told).values()) > 1, "no process has lived over an interruption"
    processes = psutil.process_iter(["cmdline"])
    alive = {process.pid for process in processes if SANDBOX in " ".join(process.info["cmdline"] or [])}
    assert alive.isdisjoint(one["pid"] for one in told), "a process has outlived its worker"


def test_given_calls_that_take_money_when_rounds_stop_under_them_then_each_is_paid_once(killed_and_resumed):
    """Over a kill, too: what nobody knew of after it was asked of the tool. A server that died under a call took money
    for it, and the loop was told of the error."""
    assert_loops_went_on(killed_and_resumed)


def test_given_loops_that_died_with_their_run_when_it_goes_on_then_calls_are_answered_from_the_record(
    killed_and_resumed,
):
    assert sum(killed_and_resumed.metric("async_dapo/calls/replayed")) > 0
    told = till.lines(killed_and_resumed.folder / till.PROCESSES)
    began_with = {one["pid"]: one["pieces"] for one in reversed(told)}
    assert max(began_with.values()) > 1, "no process had to be built again"


def test_given_room_for_all_loops_when_rounds_stop_then_they_stay_alive(killed_and_resumed):
    kept = killed_and_resumed.metric("async_dapo/calls/kept_loops")
    assert max(kept) > 0 and sum(killed_and_resumed.metric("async_dapo/calls/lost_loops")) == 0


def test_given_limits_when_trained_then_they_hold(killed_and_resumed):
    assert 0 < max(killed_and_resumed.metric("async_dapo/load_balancer/inflight/max")) <= POOL_SIZE
    generated = [n for record in killed_and_resumed.inspections for spans in record["spans"] for _, n in spans]
    assert 0 < max(generated) <= ROUND_LIMIT_TOK, "a segment is what a trajectory generates in one round"


def test_given_temperature_0_when_interrupted_then_every_token_is_as_if_nothing_had_happened(
    killed_and_resumed, weighed
):
    """Each token is the likeliest one under the version that it is stamped with, each turn ends where it had to end,
    and what the tool said of it follows and is not trained on."""
    interrupted = {(loop["uid"], loop["session"]) for loop in loops(killed_and_resumed) if not loop["is_end"]}
    own = {(loop["uid"], loop["session"]) for loop in loops(killed_and_resumed) if loop["is_own"]}
    trained = [row for step in range(1, LAST_STEP + 1) for group in weighed.batch(step) for row in group]
    resumed = [row for row in trained if (row["uid"], row["session"]) in interrupted & own]
    assert len(resumed) >= PROMPTS_PER_STEP
    for row in resumed:
        all_words = weighed.engines_log_softmax(row)
        chosen = all_words.gather(-1, sampled(row)[:, None])[:, 0]
        assert (all_words.max(-1).values - chosen).max() < TOLERANCE
        assert_dialogue(row)


def assert_dialogue(row: dict[str, Any]) -> None:
    tokenizer = build_tokenizer()
    response, is_sampled = row["input_ids"][len(row["prompts"]) :], row["policy_versions"] >= 0
    runs = torch.split(response, torch.unique_consecutive(is_sampled, return_counts=True)[1].tolist())
    turns, told = [tokenizer.decode(run) for run in runs[::2]], [tokenizer.decode(run) for run in runs[1::2]]
    is_full = len(response) >= task.QUICK_START.max_response_tok
    assert is_sampled[0] and (is_full or len(turns) == TURNS)
    for number, turn in enumerate(turns):
        text = turn.removesuffix(tokenizer.eos_token)
        assert STOP not in text[:-1], "it went on behind its end"
        assert turn.endswith((STOP, tokenizer.eos_token)) or (is_full and number == len(turns) - 1), "it ended early"
        assert number >= len(told) or answer_to(len(text)) in told[number]


@pytest.mark.nightly
def test_given_stale_kv_when_requests_go_on_under_new_weights_then_nothing_is_prefilled_again(assets, tmp_path) -> None:
    run = train(
        assets,
        tmp_path,
        steps=4,
        strategy="partial_stale_kv",
        overrides=(*OVERRIDES, *files_of(assets, tmp_path)),
        environment={till.FOLDER: str(tmp_path)},
    )
    assert_loops_went_on(run)
    assert sum(run.metric("async_dapo/partial/resumed_groups")) > 0
    assert set(run.metric("async_dapo/partial/reprefilled_tokens")) == {0.0}
    assert run.inspections[0]["max_diff_newest"] < TOLERANCE  # later no version computes afresh what they sample from
    versions = [len({version for version, _ in spans}) for record in run.inspections for spans in record["spans"]]
    assert max(versions) > 1, "no trajectory has tokens of two versions"
    assert all(map(ledger_closes, run.steps))
    assert run.steps[-1]["async_dapo/ledger/trained"] == 4 * PROMPTS_PER_STEP
