"""The command line: a table, JSON, options that the recipe accepts, and errors that help."""

import contextlib
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo_lab.plan.__main__ import main
from recipe.async_dapo_lab.plan.candidates import baselines, fitting
from recipe.async_dapo_lab.plan.hardware import load_model
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.systems import System

from ..support.plan_settings import small_scenario

SMALL = {
    "train_batch_size": 8,
    "rollout_n": 4,
    "max_response_length": 2048,
    "length_median_tok": 400,
    "servers": 2,
    "gpu_memory_utilization": 0.4,  # so that a kept KV cache fits beside the trainer
    "steps": 2,
    "warmup": 1,
}


@pytest.fixture(scope="module")
def scenario_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "scenario.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in SMALL.items()))
    return path


@pytest.fixture(scope="module")
def plan(scenario_file):
    """A small plan's JSON and what it printed."""
    path, printed = scenario_file.with_name("plan.json"), io.StringIO()
    arguments = ["--json", str(path), "--jobs", "1", "--max-length-bias", "1", "--concurrency", "16,64"]
    with contextlib.redirect_stdout(printed):
        assert main([str(scenario_file), *arguments]) == 0
    return json.loads(path.read_text()), printed.getvalue()


@pytest.mark.parametrize(("limit_tok", "is_said"), [(2048, True), (1024, False), (600, False)])
def test_given_lengths_that_another_limit_has_cut_then_that_is_said(
    scenario_file, tmp_path, capsys, limit_tok, is_said
):
    """Lengths that are cut at the limit asked about, or above it, tell all that is needed."""
    path = tmp_path / "lengths.jsonl"
    path.write_text("".join(f"{min(100 + 10 * number, 1024)}\n" for number in range(100)))
    asked = ["--max-response-length", str(limit_tok), "--strategies", "discard", "--stop-rules", "drain"]
    assert main([str(scenario_file), "--lengths", str(path), *asked, "--concurrency", "16", "--jobs", "1"]) == 0
    said = (
        f"were cut at 1024 tokens (7% of the responses), the limit asked about is {limit_tok}"
        in capsys.readouterr().out
    )
    assert said is is_said


@pytest.mark.slow
def test_given_a_scenario_then_every_strategy_rule_and_concurrency_has_a_row(plan):
    document, printed = plan
    ours = {
        (row["strategy"], row["stop_rule"], row["concurrency"]) for row in document["rows"] if not row["is_baseline"]
    }
    assert len(ours) == 8 * 3 and ("partial_stale_kv", "fifo", 64) in ours
    assert [row["system"] for row in document["rows"]][:2] == ["verl sync", "verl colocate_async"]
    assert "slower rows are not shown: --all" in printed and "verl sync" in printed
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
    ours = [row for row in document["rows"] if not row["is_baseline"]]
    fastest = by_name[document["choices"]["fastest"]["system"]]
    assert fastest["speed_up"] >= 0.98 * max(row["speed_up"] for row in ours)
    balanced = by_name[document["choices"]["balanced"]["system"]]
    assert balanced["staleness_mean"] <= 1
    colocate = by_name["verl colocate_async"]["off_policy_ratio"]
    assert by_name[document["choices"]["fresh"]["system"]]["off_policy_ratio"] <= colocate + 0.02
    [capped] = [row for row in document["rows"] if "async_dapo.max_partial_share" in row["overrides"]]
    assert by_name["partial first_completed auto"]["off_policy_ratio"] > colocate + 0.02, "else it needs no cap"
    assert capped is document["rows"][-1]
    assert document["recommended"] == document["choices"]["balanced"]


@pytest.mark.slow
def test_given_two_processes_then_rows_are_the_same_and_each_is_told_where_there_is_no_terminal(
    tmp_path, scenario_file, capsys
):
    documents, path = [], tmp_path / "plan.json"
    few = ["--json", str(path), "--strategies", "discard", "--stop-rules", "drain", "--concurrency", "16"]
    for jobs in ("1", "2"):
        assert main([str(scenario_file), *few, "--jobs", jobs]) == 0
        documents.append(json.loads(path.read_text())["rows"])
    assert documents[0] == documents[1]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("simulated ")]
    assert told[0].startswith("simulated 1 of 9, ") and told[-1].startswith("simulated 9 of 9, ")


@pytest.mark.slow
def test_given_80_gb_cards_then_what_does_not_fit_beside_the_trainer_is_not_planned(tmp_path, scenario_file, capsys):
    """Beside 0.85 of 80 GB for the engines, 8 GPUs have no room for 16 GB of an 8B model's FSDP state."""
    path = tmp_path / "plan.json"
    arguments = [str(scenario_file), "--servers", "8", "--accelerator", "h100", "--gpu-memory-utilization", "0.85"]
    pools = ["--strategies", "partial,partial_stale_kv", "--concurrency", "16"]
    assert main([*arguments, *pools, "--jobs", "1", "--json", str(path), "--max-length-bias", "1"]) == 0
    document, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert not any(row["strategy"] == "partial_stale_kv" for row in document["rows"])
    assert "left out: partial_stale_kv: gpu_memory_utilization=0.85:" in printed
    assert "gradients and Adam 16," in printed and "set at most 0.77" in printed
    for choice in document["choices"].values():
        assert "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True" in choice["overrides"]
    assert fitting(small_scenario(num_servers=8), []).overrides == ()  # 141 GB hold both


def test_given_a_trainer_that_fits_on_no_split_then_the_note_says_what_would():
    scenario = small_scenario(model=load_model("qwen3-32b"), tensor_parallel_size=2, num_servers=2)
    fit = fitting(scenario, baselines(scenario))
    assert not any("separate_async" in one.system.name for one in fit.candidates)
    assert [note.split(":")[0] for note in fit.notes] == ["left out"]
    [note] = fitting(replace(scenario, tensor_parallel_size=1), []).notes
    assert "the trainer does not fit: about 2" in note and "offload_policy=True" in note


def test_given_an_fp8_cache_then_what_keeps_it_over_weight_updates_is_not_planned(tmp_path, scenario_file, capsys):
    path = tmp_path / "plan.json"
    arguments = [str(scenario_file), "--kv-cache-dtype", "fp8", "--stop-rules", "first_completed"]
    assert main([*arguments, "--concurrency", "16", "--jobs", "1", "--json", str(path)]) == 0
    strategies = {row["strategy"] for row in json.loads(path.read_text())["rows"] if not row["is_baseline"]}
    assert strategies == {"discard", "partial", "consistent"}
    assert "left out: partial_stale_kv: with kv_cache_dtype=fp8" in capsys.readouterr().out


@pytest.mark.slow
def test_given_no_row_that_is_allowed_then_it_says_which_limit_to_relax(scenario_file, capsys):
    assert main([str(scenario_file), "--jobs", "1", "--max-length-bias", "0", "--strategies", "partial"]) == 0
    assert "relax max_length_bias or max_off_policy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "qwen3-32b", "--accelerator", "a800"], "tensor_parallel_size=1: qwen3-32b has"),
        (["--max-response-length", "900000"], "tokens of KV cache that a server has room for"),
        (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization=1.5: must be in 0..1"),
        (["--valid-share", "0"], "valid_share=0.0: must be in 0..1"),
        (["--valid-share", "1e-4"], "valid_share=0.0001: 0 of 1024 sampled groups of n=16 are valid; below 0.5%"),
        (["--servers", "two"], "servers=two: must be a whole number"),
        (["--rollout-n", "1"], "actor_rollout_ref.rollout.n=1"),
        (
            ["--strategies", "keep"],
            "strategies=keep: must be a comma-separated list of discard, partial, ",
        ),
        (["--stop-rules", "soon"], "stop_rules=soon: must be a comma-separated list of first_completed, fifo, drain"),
        (["--accelerator", "h10"], "accelerator=h10: unknown; did you mean h100?"),
        (["--model", "qwen3-8"], "model=qwen3-8: no such file; did you mean qwen3-8b?"),
        (["--tensor-parallel-size", "3"], "tensor_parallel_size=3: must divide the 32 attention heads of qwen3-8b"),
        (["--model", "llama-3.1-70b", "--accelerator", "h100"], "it needs at least 4 GPUs per server"),
        (["--lengths", "missing.jsonl"], "lengths=missing.jsonl: no such file"),
        (["--calibrate", "missing.jsonl"], "calibrate=missing.jsonl: no such file"),
        (["--length-correlation", "2"], "length_correlation=2.0: must be in 0..1"),
        (["missing.yaml"], "scenario=missing.yaml: no such file"),
        (["--steps", "0"], "steps=0: must be >= 1"),
        (["--seed", "-3"], "seed=-3: must be >= 0"),
        (["--length-sigma", "nan"], "length_sigma=nan: must be a number"),
        (["--length-sigma", "50"], "length_sigma=50.0: must be <= 4"),
        (["--length-median-tok", "4e6"], "length_median_tok=4000000.0: 100% of the responses would reach max_resp"),
        (["--length-median-tok", "0.004"], "length_median_tok=0.004: nearly all responses would have one token"),
        (["--prompt-len-tok", "1e8"], "prompt_len_tok=100000000: must be <= 1e+06"),
        (
            ["--accelerator", "h100", "--strategies", "partial_stale_kv"],
            "gpu_memory_utilization=0.85: partial_stale_kv keeps the KV cache while the trainer runs, which takes",
        ),
        (
            ["--kv-cache-dtype", "fp8", "--strategies", "partial,partial_stale_kv"],
            "kv_cache_dtype=fp8: strategies=partial_stale_kv keeps the cache over weight updates",
        ),
        (["--concurrency", "100000"], "concurrency=100000: must be in 1..7992"),
        (["--concurrency", ""], "concurrency=: must be a comma-separated list, each a whole number"),
        (["--jobs", "0"], "jobs=0: must be >= 1"),
        (["--json", "no-such-folder/plan.json"], "json=no-such-folder/plan.json: must be a file in a folder"),
        (["--strategies", "partial", "--stop-rules", "drain"], "stop_rules=drain: only goes with"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_given_bad_input_then_the_error_names_key_value_and_remedy(capsys, arguments, words):
    assert main(["--jobs", "1", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a: [", "- 3", "server: 8"], ids=["not YAML", "a list", "unknown"])
def test_given_a_file_without_inputs_then_the_error_says_what_it_must_hold(tmp_path, capsys, text):
    path = tmp_path / "bad.yaml"
    path.write_text("")
    assert Inputs.load(str(path), {}) == Inputs()
    path.write_text(text)
    assert main([str(path)]) == 2
    assert ("server=8: unknown input" if text == "server: 8" else f"scenario={path}: ") in capsys.readouterr().err


@given(st.integers(1, 1024), st.floats(0.01, 1))
def test_given_any_inputs_then_the_scenario_says_the_same(groups, share):
    scenario = Inputs.load(None, {"train_batch_size": str(groups), "valid_share": str(share)}).scenario()
    assert scenario.train_batch_size == groups and scenario.valid_share == pytest.approx(share)
