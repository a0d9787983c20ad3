"""What is said of a record of an engine's speeds, and of how a process ended."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.gpu_check.speed import Cell, cells, judge_speed, record_line
from recipe.async_dapo_lab.gpu_check.supervised import run_supervised
from recipe.async_dapo_lab.plan.calibration import calibrate

BASE_S, PER_REQUEST_S, PER_KV_S = 0.009, 1.2e-4, 4e-8


def measured(file: Path, *, noise: float = 0.0) -> dict[str, Any]:
    """Of an engine that is what the planner assumes, but for `noise`."""
    lines = []
    for number, cell in enumerate(cells(kv_room_tok=400_000, batches=(1, 8, 64), contexts_tok=(512, 2048))):
        step_s = BASE_S + PER_REQUEST_S * cell.batch + PER_KV_S * cell.kv_tok
        step_s *= 1 + noise * (-1) ** number
        lines.append(record_line(cell, short_s=0.5 + 32 * step_s, long_s=0.5 + 160 * step_s))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    best = max(line["tokens_per_s"] for line in lines)
    about = {"kv_room_tok": 400_000, "async_scheduling": True, "second_runner": True}
    return about | {"record": str(file), "best_tokens_per_s": best}


def test_given_a_record_when_judged_then_the_planner_takes_it_and_its_fit_is_the_engines(tmp_path: Path) -> None:
    facts = measured(tmp_path / "speed.jsonl")
    verdict = judge_speed(facts, "")
    assert verdict.status == "PASS" and f"--calibrate {facts['record']}" in verdict.found
    assert "second model runner" in verdict.found
    fitted = calibrate(facts["record"])
    assert (fitted.base_s, fitted.per_kv_token_s) == (
        pytest.approx(BASE_S, rel=0.01),
        pytest.approx(PER_KV_S, rel=0.01),
    )


def test_given_a_record_that_says_little_when_judged_then_it_fails_with_a_remedy(tmp_path: Path) -> None:
    nothing = judge_speed({"record": "", "best_tokens_per_s": 0.0, "kv_room_tok": 100}, "")
    noisy = judge_speed(measured(tmp_path / "speed.jsonl", noise=0.6), "")
    dead = judge_speed({}, "CUDA error: out of memory; its log: engine.log")
    assert "out of memory" in dead.found and dead.is_failure and dead.remedy
    assert "too small to measure" in nothing.found and "off the planner's formula" in noisy.found
    assert nothing.is_failure and noisy.is_failure and nothing.remedy and noisy.remedy


def test_given_cells_then_those_that_fit_are_measured_and_a_line_counts_what_lies_in_the_cache() -> None:
    fitting = list(cells(kv_room_tok=670_000, batches=(1, 8, 64, 256), contexts_tok=(512, 2048, 8192)))
    assert len(fitting) > 8 and max(cell.kv_tok for cell in fitting) <= 670_000
    assert record_line(Cell(batch=2, context_tok=100), short_s=1.0, long_s=2.0) == {
        "inflight": 2,
        "kv_tok": 2 * (100 + 96),
        "tokens_per_s": 256.0,
        "context_tok": 100,
        "prefill_s": 0.75,
    }


def run(program: str, tmp_path: Path, timeout_s: float = 60.0) -> str:
    command = [sys.executable, "-c", program]
    return run_supervised(command, environment={}, log=tmp_path / "a.log", timeout_s=timeout_s)


def test_given_a_process_when_it_ends_then_its_last_error_is_told(tmp_path: Path) -> None:
    assert run("print('fine')", tmp_path) == ""
    assert run("print(1); raise RuntimeError('no kernel image')", tmp_path).startswith("RuntimeError: no kernel image")
    assert run("import os; os._exit(7)", tmp_path).startswith("exit code 7")
    assert run("import threading; threading.Event().wait()", tmp_path, timeout_s=0.5).startswith("not done after")
