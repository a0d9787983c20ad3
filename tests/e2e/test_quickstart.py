"""The quick start, whole: it learns, it stops early, and it says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.async_dapo.cpu.model_and_data import Assets
from recipe.async_dapo.cpu.overrides import QUICK_STEPS

from ..support.harness import ROOT, Run


@pytest.fixture(scope="module")
def summary(assets: Assets) -> dict:
    folder = assets.folder.parent / "quickstart"  # finds its model there
    command = [sys.executable, "-m", "recipe.async_dapo.cpu.quickstart", "--output", str(folder)]
    command += ["--timeout-s", "3000"]  # before pytest's own limit, which would leave its processes
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for name in ("train.log", "training.png", "metrics.jsonl"):
        assert Path(folder, name).stat().st_size > 0
    return json.loads(Path(folder, "summary.json").read_text())


def test_given_the_quick_start_when_it_trains_then_the_model_learns(summary):
    assert 0.2 <= summary["accuracy_before"] <= 0.6
    assert summary["accuracy_after"] >= summary["accuracy_before"] + 0.3


def test_given_the_quick_start_when_it_trains_then_filter_and_stop_act(summary):
    assert summary["steps"] == QUICK_STEPS
    assert summary["groups"]["filtered"] > 0
    assert summary["steps_stopped_early"] > 0
    steps = Run(folder=Path(summary["options"]["output"]), exit_code=0).steps
    assert sum(step["async_dapo/partial/resumed_groups"] for step in steps) > 0
    assert sum(step["async_dapo/tokens/discarded"] for step in steps) == 0
