"""A run's record in place of the planner's assumptions."""

import json

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo_lab.plan.from_run import inputs_of_run
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.report.lengths import MOST_GROUPS, length_lines
from recipe.async_dapo_lab.run_files import LENGTHS_FILE, BoundedFile

RUN = {
    "name": "project/run",
    "system": "discard, fifo",
    "started_s": 0.0,
    "gpus": 4,
    "settings": {
        "model": "of-the-hub/model",
        "data.train_batch_size": 8,
        "rollout.n": 4,
        "data.max_response_length": 2048,
        "over_sampling_batch_size": "auto",
        "rollout_pool_size": "None",
        "engines": 2,
        "max_num_seqs": 64,
        "rollout.gpu_memory_utilization": 0.7,
    },
}


def outcome(uid: int, verdict: Verdict, *lens_tok: int) -> GroupOutcome:
    return GroupOutcome(prompt_uid=str(uid), verdict=verdict, response_lens_tok=lens_tok)


def step(number: int) -> dict:
    data = {
        "timing_s/step": 30.0,
        "prompt_length/mean": 98.0 + number,
        "async_dapo/round/rollout_s": 20.0 + number,
        "async_dapo/tokens/trained": 40_000.0 + 900 * number,
        "async_dapo/load_balancer/inflight/max": 64.0,
        "async_dapo/load_balancer/idle_ratio": 0.1 * number,
    }
    return {"step": number, "time_s": 1.0, "data": data, "causes": {}}


@pytest.fixture
def folder(tmp_path):
    file = BoundedFile(tmp_path / LENGTHS_FILE)
    for number in (1, 2):
        judged = [outcome(i, Verdict.VALID, 300, 500, 900, 1500) for i in range(6)]
        judged += [outcome(9, Verdict.FILTERED, 10, 20, 30, 40), outcome(10, Verdict.FILTERED, 10, 20, 30, 40)]
        file.add(*length_lines(number, [*judged, outcome(11, Verdict.FAILED, 5, 5)]))
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(step(number)) + "\n" for number in (1, 2, 3)))
    return tmp_path


def test_a_record_says_sizes_lengths_valid_share_and_speeds(folder):
    recorded = inputs_of_run(str(folder))
    inputs = Inputs.load(None, {"rollout_n": "2"}, recorded=recorded)
    assert (inputs.train_batch_size, inputs.rollout_n, inputs.servers, inputs.tensor_parallel_size) == (8, 2, 2, 2)
    assert (inputs.max_num_seqs, inputs.gpu_memory_utilization, inputs.prompt_len_tok) == (64, 0.7, 100)
    assert inputs.valid_share == 0.75
    scenario = inputs.scenario()
    assert scenario.lengths.sorted_tok.max() == 1500
    assert scenario.measured.outside_s == pytest.approx(8.0)


def test_turns_and_seconds_in_tools_are_taken_from_the_record(folder):
    steps = [{"step": k, "data": {"async_dapo/turns/mean": 3.0, "async_dapo/turns/calls_s": 8.0}} for k in (1, 2)]
    with (folder / "steps.jsonl").open("a") as stream:
        stream.writelines(json.dumps(step) + "\n" for step in steps)
    inputs = Inputs.load(None, {}, recorded=inputs_of_run(str(folder)))
    assert (inputs.tool_calls, inputs.tool_median_s, inputs.tool_sigma) == (2, 4.0, 0.0)


def test_a_run_with_drafts_says_what_its_engines_accepted(folder):
    drafts = {"async_dapo/drafts/tok_per_step": 1.4}
    with (folder / "steps.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": 4, "data": step(4)["data"] | drafts}) + "\n")
    inputs = Inputs.load(None, {}, recorded=inputs_of_run(str(folder)))
    assert inputs.drafts_accepted == pytest.approx(0.4)
    assert inputs.scenario().measured.has_drafts


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("run.json", None, "holds no run.json; name the folder of a run"),
        ("lengths.jsonl", None, "holds no lengths.jsonl"),
        ("lengths.jsonl", "", "holds no step yet"),
        ("steps.jsonl", None, "holds no step yet"),
        ("run.json", "{", "run.json cannot be read"),
    ],
)
def test_a_folder_without_a_record_is_named(folder, file, text, words):
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(ConfigError) as refused:
        inputs_of_run(str(folder))
    assert str(refused.value).startswith(f"from_run={folder}: {words}")


def test_lengths_of_a_large_step_are_few_and_evenly_of_all_of_it() -> None:
    outcomes = [outcome(i, Verdict.VALID, i) for i in range(1, 4 * MOST_GROUPS + 2)]
    lens_tok = [line["response_lens_tok"][0] for line in length_lines(1, outcomes)]
    assert len(lens_tok) <= MOST_GROUPS and max(lens_tok) - min(lens_tok) > 4 * MOST_GROUPS - 10
