"""Runs of the real stack on CPU for the tests: started, watched, killed and read."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import (
    RunSettings,
    host_kv_overrides,
    recipe_overrides,
    verl_overrides,
)
from recipe.async_dapo_lab.quickstart.supervision import RayFolder

from .doors import SECRETS, Doors
from .fork_server import ROOT, ForkedTraining

INSPECTED = "tests.support.inspected_run"
VERL = "verl.trainer.main_ppo"
STALL_S = 1500.0  # four ranks on two slow cores take 600 s to their first step
_LOG_TAIL_CHARS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run has left in its folder."""

    folder: Path
    exit_code: int

    @property
    def steps(self) -> list[dict[str, float]]:
        """Metrics of every trained step, in order."""
        records = [json.loads(line) for line in _lines(self.folder / "metrics.jsonl")]
        return [record["data"] for record in records if "timing_s/step" in record["data"]]

    def noted(self, name: str) -> list[dict[str, Any]]:
        """What `inspected_run` wrote down with a field of this name, in order."""
        notes = [json.loads(line) for line in _lines(self.folder / "inspection.jsonl")]
        return [note for note in notes if name in note]

    @property
    def inspections(self) -> list[dict[str, Any]]:
        """What it wrote down of each batch."""
        return self.noted("uids")

    def metric(self, name: str) -> list[float]:
        return [step[name] for step in self.steps]

    @property
    def doors(self) -> Doors:
        return Doors.read(self.folder)

    @property
    def log_tail(self) -> str:
        return (self.folder / "train.log").read_text(errors="replace")[-_LOG_TAIL_CHARS:]


def ledger_closes(step: dict[str, float]) -> bool:
    """Whether every prompt drawn so far is accounted for."""
    terms = ("trained", "filtered", "failed", "retired", "waiting", "deferred", "buffered")
    return step["async_dapo/ledger/drawn"] == sum(step[f"async_dapo/ledger/{term}"] for term in terms)


class StallWatch:
    """Fails a run that hangs: one that has finished no step for `STALL_S`."""

    def __init__(self, folder: Path) -> None:
        self._run = Run(folder=folder, exit_code=1)
        self.finished = len(self._run.steps)
        self._since = time.monotonic()

    def check(self) -> None:
        if (finished := len(self._run.steps)) != self.finished:
            self.finished, self._since = finished, time.monotonic()
        assert time.monotonic() - self._since < STALL_S, f"no step for {STALL_S} s:\n{self._run.log_tail}"


def train(
    assets: Assets,
    folder: Path,
    *,
    steps: int,
    strategy: str | None = "discard",
    stop_rule: str | None = None,
    module: str = INSPECTED,
    overrides: Sequence[str] = (),
    engines: int = 1,
    environment: Mapping[str, str] | None = None,
    switches: Mapping[str, Any] | None = None,
    kill_at: int | None = None,
    fails: bool = False,
) -> Run:
    """Train and wait for the end.

    Args:
        strategy: None for verl's own trainer.
        environment: further variables.
        switches: of `inspected_run`.
        kill_at: the step before whose update every process of the run is killed at once (SIGKILL).
        fails: whether it must end with an error.

    Raises:
        AssertionError: with the end of the log, if the run fails, or finishes no step for `STALL_S`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    switches = {"wait_at": kill_at or 0} | dict(switches or {})
    with RayFolder() as ray_folder:
        settings = RunSettings(
            assets=assets, output=folder, ray_folder=ray_folder.path, steps=steps, seed=0, engines=engines
        )
        own = [] if strategy is None else [*recipe_overrides(strategy=strategy, stop_rule=stop_rule)]
        if strategy == "partial_stale_kv" and "async_dapo.placement=separate" not in overrides:
            own += host_kv_overrides(HOST_KV_GIB)
        command = [sys.executable, "-m", module, *verl_overrides(settings), *own, *_QUICK, *overrides]
        process = ForkedTraining(
            command,
            environment=_environment(folder, ray_folder.path, switches) | dict(environment or {}),
            log_file=folder / "train.log",
        )
        with process:
            stall, doors = StallWatch(folder), Doors()
            while process.exit_code is None:
                process.watch(1.0)
                doors.look(process, trained_steps=stall.finished)
                if kill_at and Run(folder=folder, exit_code=0).noted("waits"):
                    process.end(grace_s=0)
                    return Run(folder=folder, exit_code=-9)
                stall.check()
        doors.write(folder, ray_folder.path)
    run = Run(folder=folder, exit_code=process.exit_code)
    assert kill_at is None and (run.exit_code != 0) == fails, f"exit code {run.exit_code}:\n{run.log_tail}"
    return run


def temporary_folder_of(process: psutil.Process) -> str:
    """The one in its environment, which tells the processes of a run; "" of one that has ended."""
    try:
        return process.environ().get("TMPDIR", "")
    except psutil.Error:
        return ""


def overrides_of(example: str) -> list[str]:
    """Those that its `train.sh` gives to the quick start."""
    script = (ROOT / "examples" / example / "train.sh").read_text()
    words = shlex.split(script.replace("\\\n", " ").replace("$root/", f"{ROOT}/"), comments=True)
    return words[words.index("--") + 1 : words.index("$@")]


def run_module(*arguments: str) -> str:
    """What a module of this repository says, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-_LOG_TAIL_CHARS:] + done.stderr[-2000:]
    return done.stdout


def train_at_once(*runs: Callable[[], Run]) -> list[Run]:
    """Several calls of `train`, each in a process of its own, which is what can tell its children from others'."""
    with ProcessPoolExecutor(len(runs), mp_context=get_context("spawn")) as pool:
        return [run.result() for run in [pool.submit(run) for run in runs]]


# No validation and no TensorBoard; the inspection's probes are one micro-batch of log-probs.
HOST_KV_GIB = 0.1  # where `partial_stale_kv` keeps KV
_QUICK = (
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.logger=[console,file]",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
)


def _environment(folder: Path, ray_folder: Path, switches: Mapping[str, Any]) -> dict[str, str]:
    environment = run_environment(os.environ | SECRETS, code_path=ROOT, output=folder, ray_folder=ray_folder)
    return environment | inspection(folder, switches)


def inspection(folder: Path, switches: Mapping[str, Any]) -> dict[str, str]:
    """Variables of `inspected_run`."""
    return {"INSPECTION_FILE": str(folder / "inspection.jsonl"), "SWITCHES": json.dumps(switches)}


def _lines(file: Path) -> list[str]:
    """Complete lines: the last one of a run that was killed may be cut."""
    return file.read_text().split("\n")[:-1] if file.exists() else []
