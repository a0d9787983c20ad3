"""The command on a machine that it cannot use, the planner's step, collectives; what it leaves."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.gpu_check import __main__ as command
from recipe.async_dapo_lab.gpu_check import engine, machine, several_gpus, speed, training
from recipe.async_dapo_lab.gpu_check.engine import EngineSettings, Section
from recipe.async_dapo_lab.gpu_check.several_gpus import all_reduce, judge_all_reduce
from recipe.async_dapo_lab.gpu_check.speed import (
    REFERENCE,
    TINY,
    Cell,
    cells,
    hardware,
    judge_speed,
    prefill_flop_share,
    record_line,
)
from recipe.async_dapo_lab.gpu_check.verdicts import passed
from recipe.async_dapo_lab.plan.calibration import calibrate
from recipe.async_dapo_lab.plan.hardware import find_accelerator, load_model
from recipe.async_dapo_lab.quickstart.model_and_data import Assets

from .test_engine import GOOD as GOOD_ENGINE
from .test_machine import GOOD as GOOD_MACHINE
from .test_training import step

ROOT = Path(__file__).parents[2]
BASE_S, PER_REQUEST_S, PER_KV_S = 0.009, 1.2e-4, 4e-8


def lines(noise: float = 0.0) -> list[dict[str, float]]:
    """Of an engine that is what the planner assumes, but for `noise`."""
    said = []
    for number, cell in enumerate(cells(kv_room_tok=400_000, batches=(1, 8, 64), contexts_tok=(512, 2048))):
        step_s = BASE_S + PER_REQUEST_S * cell.batch + PER_KV_S * cell.kv_tok
        step_s *= 1 + noise * (-1) ** number
        said.append(record_line(cell, short_s=0.5 + 32 * step_s, long_s=0.5 + 160 * step_s))
    return said


@pytest.mark.skipif("CUDA_VISIBLE_DEVICES" in os.environ, reason="a machine with a GPU")
def test_given_a_machine_without_a_gpu_when_checked_then_it_says_so_soon_and_fails(tmp_path, capsys) -> None:
    assert command.main(["--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "FAIL driver and CUDA" in said and "set --device cpu" in said
    written = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert written["counts"]["FAIL"] >= 2 and written["device"] == "cuda"
    assert written["checks"][-1]["found"] == "mend the machine first"
    assert all(check["remedy"] for check in written["checks"] if check["status"] == "FAIL")


@pytest.mark.parametrize("wrong", [["--gpus", "0"], ["--model", "/nowhere"], ["--tensor-parallel-size", "2"]])
def test_given_wrong_arguments_when_started_then_the_message_names_them(wrong, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(wrong)
    assert ended.value.code == 2 and f"{wrong[0]}={wrong[1]}" in capsys.readouterr().err


def test_given_a_record_when_planned_then_the_fit_is_the_engines_and_there_is_a_step(tmp_path: Path) -> None:
    facts = {"record": lines(), "kv_room_tok": 400_000}
    verdict, measured = judge_speed(facts, record=tmp_path / "speed.jsonl", reference=TINY)
    assert verdict.status == "PASS" and measured["step_s"] > 0
    assert measured["base_ms"] == pytest.approx(1e3 * BASE_S, rel=0.01)
    fitted = calibrate(str(tmp_path / "speed.jsonl"), num_servers=8)
    assert fitted.per_kv_token_s == pytest.approx(PER_KV_S, rel=0.01)
    assert not fitted.has_prefill, "it is of decoding alone"


def test_given_a_record_of_a_gpu_when_planned_then_there_is_a_step_of_the_reference_script(tmp_path: Path) -> None:
    reference = REFERENCE | {"model": "qwen3-8b"} | hardware(GOOD_MACHINE.gpus, [], Path("qwen3-8b"))
    facts = {"record": lines(), "kv_room_tok": 400_000}
    verdict, measured = judge_speed(facts, record=tmp_path / "speed.jsonl", reference=reference)
    assert verdict.status == "PASS" and "with 8 engines and B=512" in verdict.found
    assert measured["step_s"] > measured["rollout_s"] > 0


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"record": [], "kv_room_tok": 100}, "too small to measure"),
        ({"record": lines(noise=0.6), "kv_room_tok": 400_000}, "off the planner's formula"),
    ],
)
def test_given_a_record_that_says_little_when_planned_then_it_fails_with_a_remedy(tmp_path, facts, found) -> None:
    verdict, _ = judge_speed(facts, record=tmp_path / "speed.jsonl", reference=TINY)
    assert verdict.is_failure and found in verdict.found and verdict.remedy


def test_given_prefills_when_the_longest_is_taken_then_the_share_of_peak_is_that_of_its_arithmetic() -> None:
    model, accelerator = load_model("qwen3-8b"), find_accelerator("h100")
    seconds = model.forward_flops(8192, 8192**2) / (0.4 * accelerator.bf16_tflop_s * 1e12)
    prefills = [{"context_tok": 512, "seconds": 1.0}, {"context_tok": 8192, "seconds": seconds}]
    assert prefill_flop_share(prefills, model=model, accelerator=accelerator) == pytest.approx(0.4)
    assert prefill_flop_share([], model=model, accelerator=accelerator) is None


def test_given_cells_then_those_that_fit_are_measured_and_a_line_counts_what_lies_in_the_cache() -> None:
    fitting = list(cells(kv_room_tok=670_000))
    assert len(fitting) > 12 and max(cell.kv_tok for cell in fitting) <= 670_000
    assert record_line(Cell(batch=2, context_tok=100), short_s=1.0, long_s=2.0) == {
        "inflight": 2,
        "kv_tok": 2 * (100 + 96),
        "tokens_per_s": 256.0,
    }


def sum_up(folder: Path) -> tuple[float | None, str]:
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    return all_reduce("gloo", folder=folder / "ranks", environment=environment, size_bytes=1 << 20)


def test_given_two_ranks_when_they_sum_then_the_sum_is_right_and_timed(tmp_path: Path) -> None:
    seconds, ended = sum_up(tmp_path)
    assert judge_all_reduce(seconds, ended).status == "PASS", ended
    assert seconds is not None and seconds > 0


def test_given_ranks_that_cannot_start_when_they_sum_then_their_error_is_told(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('no network')")
    seconds, ended = sum_up(tmp_path)
    assert seconds is None and "no network" in ended
    assert judge_all_reduce(seconds, ended).found == ended


@pytest.mark.parametrize(
    ("seconds", "ended", "found"), [(None, "", "the sum is wrong"), (0.1, "not done after 120 s", "not done")]
)
def test_given_broken_collectives_when_judged_then_they_fail_with_a_remedy(seconds, ended, found) -> None:
    verdict = judge_all_reduce(seconds, ended)
    assert verdict.is_failure and found in verdict.found and "NCCL_DEBUG" in verdict.remedy


@pytest.mark.parametrize(
    ("arguments", "themes"),
    [([], ["2", "4", "5", "6", "7"]), (["--only", "3"], ["2"]), (["--only", "6"], ["6"])],
    ids=["all", "3", "6"],
)
def test_given_one_theme_when_asked_for_then_no_other_runs(tmp_path, monkeypatch, arguments, themes) -> None:
    began: list[str] = []

    class Noted(command.Check):
        def _engine(self) -> None:
            began.append("2")

        def _training(self) -> None:
            began.append("4")

        def _cheaper_tokens(self) -> None:
            began.append("5")

        def _speed(self) -> None:
            began.append("6")

        def _several(self) -> None:
            began.append("7")

    monkeypatch.setattr(command, "Check", Noted)
    monkeypatch.setattr(command, "prepare", lambda output, device: Assets(folder=output))
    command.main(["--device", "cpu", "--output", str(tmp_path / "out"), *arguments])
    assert began == themes


OUT_OF_MEMORY = "CUDA error: out of memory"
ENDS_BADLY = {  # an engine, a training or the ranks -> checks that fail
    "speed": ["decode and prefill"],
    "engine": ["start", "weights"],
    "drafts": ["drafts by suffix decoding"],
    "fp8": ["FP8 cache: generate"],
    "nccl": ["nccl all-reduce"],
    "partial, no async scheduling": ["partial, no async scheduling"],
    "consistent": ["consistent"],
    "discard, drain": ["discard, drain"],
    "tensor parallel 2": ["tensor parallel 2"],
    "two FSDP ranks": ["two FSDP ranks"],
    "one engine killed": ["one engine killed"],
}


@pytest.mark.parametrize("broken", ENDS_BADLY)
def test_given_two_gpus_when_one_thing_ends_badly_then_every_theme_is_told_and_only_its_checks_fail(
    tmp_path, monkeypatch, capsys, broken: str
) -> None:
    """The order and wiring of the command on GPUs; what it starts is replaced by what good hardware would say."""
    asked: dict[str, EngineSettings] = {}

    def run_engine(settings: EngineSettings, **_: Any) -> tuple[dict[str, Any], str]:
        asked[name := Path(settings.facts).parent.name] = settings
        sections = (Section.START, *settings.sections)
        good = {section: dict(GOOD_ENGINE.get(section, {"prefills": []})) for section in sections}
        return ({}, OUT_OF_MEMORY) if name == broken else (good, "")

    def train(case: training.Case, *_: Any, **__: Any) -> tuple[list[dict[str, float]], str]:
        lost = {"async_dapo/load_balancer/lost_servers": float(case.kills_an_engine)}
        steps = [step(number, **lost) for number in range(1, case.steps + 1)]
        return (steps[:1], OUT_OF_MEMORY) if case.name == broken else (steps, "")

    monkeypatch.setattr(command, "find_spec", lambda name: name)
    sums = (None, OUT_OF_MEMORY) if broken == "nccl" else (0.01, "")
    monkeypatch.setattr(machine, "probe", lambda device, output: GOOD_MACHINE)
    monkeypatch.setattr(command, "prepare", lambda output, device: Assets(folder=output))
    monkeypatch.setattr(command, "make_config", lambda folder: folder)
    monkeypatch.setattr(engine, "run_engine", run_engine)
    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(several_gpus, "all_reduce", lambda *_, **__: sums)
    monkeypatch.setattr(speed, "hardware", lambda *_: {})
    monkeypatch.setattr(speed, "judge_speed", lambda *_, **__: (passed("fast"), {}))
    assert command.main(["--gpus", "2", "--full", "--output", str(tmp_path)]) == 1
    checks = json.loads((tmp_path / "gpu_check.json").read_text())["checks"]
    failures = [check for check in checks if check["status"] == "FAIL"]
    assert [check["check"] for check in failures] == ENDS_BADLY[broken]
    assert all(OUT_OF_MEMORY in check["found"] and check["remedy"] for check in failures)
    assert {check["theme"].split(".")[0] for check in checks} == set("1234567")
    assert "sleep level 2" in capsys.readouterr().out
    plain, drafts, fp8, fast = (asked[name] for name in ("engine", "drafts", "fp8", "speed"))
    assert plain.dtype == "bfloat16" and plain.attention == "flash_attention_2"
    assert drafts.engine_kwargs["speculative_config"]["method"] == "suffix"
    assert "speculative_config" not in plain.engine_kwargs
    assert fp8.engine_kwargs == {"kv_cache_dtype": "fp8"} and fast.load_format == "dummy"
    beside = [check["measured"].get("plain_tokens_per_s") for check in checks if check["check"] == Section.DRAFTS]
    assert beside == [None if broken == "drafts" else 16_384]
