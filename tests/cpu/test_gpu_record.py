"""The record of an engine's decode steps, made on vLLM's CPU build."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from verl.plugin.platform import get_platform

from recipe.async_dapo.cpu.activation import cpu_environment
from recipe.async_dapo_lab.plan.calibration import calibrate

from ..support.composed_runs import write_model

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_given_a_model_without_weights_when_recorded_then_the_record_has_every_cell_and_can_be_fitted(tmp_path) -> None:
    model, record = write_model(tmp_path / "model"), tmp_path / "record.jsonl"
    (model / "model.safetensors").unlink()
    options = ["--batches", "1", "8", "--contexts", "64", "512", "--gpu-memory-utilization", "0.1", "--enforce-eager"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_record", "--model", str(model), "--output", str(record), *options],
        cwd=ROOT,
        env=cpu_environment(os.environ, code_path=ROOT) | get_platform().rollout_env_vars(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(line["inflight"], line["kv_tok"]) for line in lines] == [(1, 160), (8, 1280), (1, 608), (8, 4864)]
    assert all(line["tokens_per_s"] > 0 for line in lines)
    assert calibrate(str(record), num_servers=1).num_points == 4
