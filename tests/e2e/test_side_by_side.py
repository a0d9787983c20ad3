"""Two runs on one machine, started together, each with a Ray cluster of its own: both train, on their own weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import LEARNING_RATE

from ..support.harness import ROOT, Run

STEPS = 4
LIMIT_S = 900  # of both: one of them alone takes a minute
OVERRIDES = (
    "async_dapo.over_sampling_batch_size=12",  # no batch is all surplus of the step before
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.logger=[console,file]",
)


def start(folder: Path, *, learning_rate: float) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "recipe.async_dapo_lab.quickstart",
        "--steps",
        str(STEPS),
        "--output",
        str(folder),
    ]
    command += ["--strategy", "discard", "--timeout-s", str(LIMIT_S), "--", *OVERRIDES]
    command += [f"actor_rollout_ref.actor.optim.lr={learning_rate}"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# `test_multi_turn.py` has two runs at a time for every change.
pytestmark = [pytest.mark.nightly, pytest.mark.alone]


@pytest.fixture(scope="module")
def runs(assets: Assets) -> list[Run]:
    folders = [assets.folder.parent / name for name in ("one", "other")]
    rates = (LEARNING_RATE, 5 * LEARNING_RATE)  # after the first step their weights are not the same
    processes = [start(folder, learning_rate=rate) for folder, rate in zip(folders, rates, strict=True)]
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
    return [Run(folder=folder, exit_code=0) for folder in folders]


@pytest.mark.parametrize("which", [0, 1], ids=["one", "other"])
def test_given_two_runs_at_a_time_when_they_train_then_each_engine_has_the_weights_of_its_run(runs, which):
    assert len(runs[which].steps) == STEPS
    ratios = runs[which].metric("async_dapo/importance/staleness_0/ratio_max")  # of the newest weights' tokens
    assert ratios == pytest.approx([1.0] * STEPS, abs=1e-3)
