"""The command line: a table, JSON, options that the recipe accepts, and errors that help."""

import contextlib
import io
import json
import re

import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo_lab.plan import recommend
from recipe.async_dapo_lab.plan.__main__ import main
from recipe.async_dapo_lab.plan.candidates import baselines
from recipe.async_dapo_lab.plan.report import seconds
from recipe.async_dapo_lab.plan.sweep import sweep
from recipe.async_dapo_lab.plan.systems import System

from ..support.plan_settings import small_scenario

SMALL = {
    "train-batch-size": 8,
    "rollout-n": 4,
    "max-response-length": 2048,
    "length-median-tok": 400,
    "servers": 2,
    "gpu-memory-utilization": 0.4,  # so that a kept KV cache fits beside the trainer
    "engine": "published-2025",  # slow enough that this recipe gains something here
    "steps": 2,
    "warmup": 1,
}


FEW_STEPS = ("--steps", "1", "--warmup", "0")  # where nothing is asked of what they measure


def small(*arguments: str) -> list[str]:
    return [word for key, value in SMALL.items() for word in (f"--{key}", str(value))] + ["--jobs", "1", *arguments]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A small plan's JSON and what it printed."""
    path, printed = tmp_path_factory.mktemp("plan") / "plan.json", io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patched:
        patched.setattr(recommend, "MOST_LENGTH_BIAS", 1.0)  # of few steps
        assert main(small("--json", str(path))) == 0
    return json.loads(path.read_text()), printed.getvalue()


def test_it_says_how_long_it_takes_and_a_first_answer_comes_early_with_rows_that_stay(plan):
    document, printed = plan
    lines = printed.splitlines()
    [takes] = [place for place, line in enumerate(lines) if "rows take about" in line]
    [first] = [place for place, line in enumerate(lines) if line.startswith("first answer, seconds of a step: ")]
    [table] = [place for place, line in enumerate(lines) if line.lstrip(" *").startswith("verl sync ")]
    assert takes < first < table and lines[takes].endswith(" on 1 free core; a first answer comes before")
    said = dict(re.findall(r"([a-z_ ]+?) ([\d.]+) s[,.]", lines[first].partition(": ")[2]))
    names = {"verl sync", "verl colocate_async", "partial first_completed auto"}
    assert {name.strip() for name in said} == names
    for row in document["rows"]:
        if row["system"] in names:
            assert f"{row['system']} {seconds(row['step_s'])} s" in lines[first]


def test_the_first_answer_is_simulated_first_and_changes_no_row():
    scenario = small_scenario()
    candidates = baselines(scenario)[:3]
    order: list[str] = []
    told = {"on_row": lambda candidate, mean: order.append(candidate.system.name), "steps": 1, "warmup": 0}
    urgent = sweep(scenario, candidates, is_urgent=lambda one: one is candidates[2], **told)
    names = [one.system.name for one in candidates]
    assert order == [names[2], *names[:2]] and [row.candidate for row in urgent] == candidates
    assert urgent == sweep(scenario, candidates, steps=1, warmup=0)


@pytest.mark.slow
@pytest.mark.parametrize(("limit_tok", "is_said"), [(2048, True), (1024, False), (600, False)])
def test_given_lengths_that_another_limit_has_cut_then_that_is_said(tmp_path, capsys, limit_tok, is_said):
    """Lengths that are cut at the limit asked about, or above it, tell all that is needed."""
    path = tmp_path / "lengths.jsonl"
    path.write_text("".join(f"{min(100 + 10 * number, 1024)}\n" for number in range(100)))
    asked = ["--max-response-length", str(limit_tok), "--strategies", "consistent", *FEW_STEPS]
    assert main(small("--lengths", str(path), *asked)) == 0
    said = (
        f"were cut at 1024 tokens (7% of the responses), the limit asked about is {limit_tok}"
        in capsys.readouterr().out
    )
    assert said is is_said


@pytest.mark.slow
def test_given_inputs_then_every_system_strategy_and_rule_has_a_row(plan):
    document, printed = plan
    ours = {(row["strategy"], row["stop_rule"]) for row in document["rows"] if not row["is_baseline"]}
    old_kv = {("partial_stale_kv", rule) for rule in ("first_completed", "fifo")} if "host_kv" in declared() else set()
    assert len(ours) == 6 + len(old_kv) and old_kv == {row for row in ours if row[0] == "partial_stale_kv"}
    assert [row["system"] for row in document["rows"]][:2] == ["verl sync", "verl colocate_async"]
    assert all(row["system"] in printed for row in document["rows"])
    assert document["rows"][0]["speed_up"] == 1 and document["inputs"]["train_batch_size"] == 8


def test_given_a_plan_then_the_recommended_overrides_are_options_of_the_recipe(plan):
    document, printed = plan
    overrides = document["recommended"]["overrides"]
    assert all(line in printed for line in overrides)
    parsed = dict(line.split("=") for line in overrides)
    typed = {
        key: int(value) if value.isdigit() else value for key, value in parsed.items() if key.startswith("async_dapo")
    }
    System(name="pasted", overrides=typed).options(small_scenario())
    by_name = {row["system"]: row for row in document["rows"]}
    balanced = by_name[document["choices"]["balanced"]["system"]]
    assert balanced["staleness_mean"] <= 1
    colocate = by_name["verl colocate_async"]["off_policy_ratio"]
    assert by_name[document["choices"]["fresh"]["system"]]["off_policy_ratio"] <= colocate + 0.02
    [capped] = [row for row in document["rows"] if "async_dapo.max_partial_share" in row["overrides"]]
    assert by_name["partial first_completed auto"]["off_policy_ratio"] > colocate + 0.02, "else it needs no cap"
    assert capped is document["rows"][-1]
    assert document["recommended"] in document["choices"].values()


@pytest.mark.slow
def test_given_two_processes_then_rows_are_the_same_and_each_is_told(tmp_path, capsys):
    documents, path = [], tmp_path / "plan.json"
    for jobs in ("1", "2"):
        assert main(small("--json", str(path), "--strategies", "consistent", "--jobs", jobs)) == 0
        documents.append(json.loads(path.read_text())["rows"])
    assert documents[0] == documents[1]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("simulated ")]
    rows = len(documents[0])
    assert told[0].startswith("simulated 1 of ") and told[-1].startswith(f"simulated {rows} of {rows} rows, ")


QWEN3_5 = {"model": "qwen3.5-35b-a3b", "tensor-parallel-size": 2, "gpu-memory-utilization": 0.8, "engine": "measured"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv-cache-dtype": "fp8"}, "an FP8 cache cannot be kept"),
        (QWEN3_5, "qwen3.5-35b-a3b has layers with a state"),
    ],
    ids=("fp8", "linear attention"),
)
def test_given_kv_that_no_training_keeps_over_weight_updates_then_it_is_not_planned(tmp_path, capsys, options, why):
    path = tmp_path / "plan.json"
    given = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    asked = ["--strategies", "partial,partial_stale_kv", *FEW_STEPS]
    assert main(small(*given, *asked, "--json", str(path))) == 0
    strategies = {row["strategy"] for row in json.loads(path.read_text())["rows"] if not row["is_baseline"]}
    assert strategies == {"partial"} and f"left out: partial_stale_kv: {why}" in capsys.readouterr().out
    assert main(small(*given, "--strategies", "partial_stale_kv")) == 2
    assert f"strategies=partial_stale_kv: {why}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "qwen3-32b", "--accelerator", "a800"], "--tensor-parallel-size=1: qwen3-32b has"),
        (["--max-response-length", "900000"], "tokens of KV cache that a server has room for"),
        (["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization=1.5: must be a number > 0 and <= 1"),
        (["--valid-share", "0"], "--valid-share=0: must be a number > 0 and <= 1"),
        (["--valid-share", "1e-4"], "--valid-share=0.0001: 0 of 1024 sampled groups of n=16 are valid; below 0.5%"),
        (["--servers", "two"], "--servers=two: must be a whole number in 1..1000000"),
        (["--rollout-n", "1"], "actor_rollout_ref.rollout.n=1"),
        (["--strategies", "partial,keep"], "--strategies=keep: must be one of discard, partial, "),
        (["--accelerator", "h10"], "--accelerator=h10: unknown; did you mean h100?"),
        (["--engine", "h100"], "--engine=h100: must be one of measured, published-2025"),
        (["--model", "qwen3-8"], "--model=qwen3-8: no such file; did you mean qwen3-8b?"),
        (["--tensor-parallel-size", "3"], "--tensor-parallel-size=3: must divide the 32 attention heads of qwen3-8b"),
        (["--model", "llama-3.1-70b", "--accelerator", "h100"], "it needs at least 4 GPUs per server"),
        (["--lengths", "missing.jsonl"], "--lengths=missing.jsonl: no such file"),
        (["--calibrate", "missing.jsonl"], "--calibrate=missing.jsonl: no such file"),
        (["--length-correlation", "2"], "--length-correlation=2: must be a number in 0..1"),
        (["--steps", "0"], "--steps=0: must be a whole number in 1..1000000, or null"),
        (["--seed", "-3"], "--seed=-3: must be a whole number >= 0"),
        (["--length-sigma", "nan"], "--length-sigma=nan: must be a number in 0..4"),
        (["--length-sigma", "50"], "--length-sigma=50: must be a number in 0..4"),
        (["--length-median-tok", "4e6"], "--length-median-tok=4000000.0: 100% of the responses would reach max_resp"),
        (["--length-median-tok", "0.004"], "--length-median-tok=0.004: nearly all responses would have one token"),
        (["--prompt-len-tok", "1e8"], "--prompt-len-tok=1e8: must be a whole number in 1..1000000"),
        (["--jobs", "0"], "--jobs=0: must be >= 1"),
        (["--json", "no-such-folder/plan.json"], "--json=no-such-folder/plan.json: must be a file in a folder"),
        (["--engine-factor", "1e300"], "--engine-factor=1e300: must be a number in 0.01..100"),
        (["--bandwidth-tb-s", "1e-9"], "--bandwidth-tb-s=1e-9: must be a number in 1e-6..1e6, or null"),
        (["--kv-bytes-per-token", "1e12"], "--kv-bytes-per-token=1e12: must be a number in 1..1e9, or null"),
        (["--training-flop-share", "1e-300"], "--training-flop-share=1e-300: must be a number in 0.001..1"),
        (["--training-s", "inf"], "--training-s=inf: must be a number in 0..1e6, or null"),
        (["--length-median-tok", "inf"], "--length-median-tok=inf: must be a number > 0 and <= 1e9"),
        (["--rollout-n", "1000000000"], "--rollout-n=1000000000: must be a whole number in 1..1000000"),
        (["--drafts-accepted", "-0.1"], "--drafts-accepted=-0.1: must be a number in 0..7, or null"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_given_bad_input_then_the_error_names_key_value_and_remedy(capsys, arguments, words):
    assert main(["--jobs", "1", *arguments]) == 2
    assert words in capsys.readouterr().err
