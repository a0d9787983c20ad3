"""One training run as the benchmarks measure it: on this machine's CPU, with its engines' load."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from recipe.async_dapo.cpu.activation import run_environment
from recipe.async_dapo.cpu.model_and_data import Assets
from recipe.async_dapo.cpu.overrides import RunSettings, verl_overrides
from recipe.async_dapo.cpu.run_metrics import RunMetrics
from recipe.async_dapo.cpu.supervision import RayFolder, TrainingProcess, exit_on_signals
from recipe.async_dapo.cpu.task import TaskShape

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "recipe.async_dapo.main_async_dapo"
STREAM_INTERVAL = 64  # tokens; what this recipe's configuration sets
WARM_UP_STEPS = 3  # the engine's and the trainer's first calls are slow
_SAMPLING_S = 0.2
_ENGINE_PROCESS = "VLLM::EngineCore"

# Named by p99/median of the response length. About half of the groups are filtered at first: the model seldom succeeds.
TAILS = {
    2: TaskShape(shortest=12, longest=99, tail_exponent=5.64, carelessness=0.4),
    8: TaskShape(shortest=6, longest=99, tail_exponent=1.4, carelessness=0.45),
    25: TaskShape(shortest=2, longest=99, tail_exponent=1.0, carelessness=0.65),
}


@dataclass(slots=True)
class EngineLoad:
    """CPU seconds of the engines' processes, step by step.

    Args:
        count: engines of the run; others must not run on this machine.
    """

    count: int
    _engines: list[psutil.Process] = field(default_factory=list)
    _at_step: dict[int, tuple[float, float]] = field(default_factory=dict)  # (time, CPU seconds) when its line came

    def note(self, new_steps: list[int]) -> None:
        """Call when lines of the metrics file have come."""
        if new_steps and not self._engines:
            self._engines = [p for p in psutil.process_iter() if _ENGINE_PROCESS in " ".join(_command(p))]
            if len(self._engines) != self.count:
                raise RuntimeError(f"{len(self._engines)} engines run on this machine, of {self.count} of this run")
        try:
            times = [engine.cpu_times() for engine in self._engines]
        except psutil.NoSuchProcess:  # the run is over: its last step was validated and is left out anyway
            return
        for step in new_steps:
            self._at_step[step] = time.monotonic(), sum(t.user + t.system for t in times)

    def idle_share(self, steps: Iterable[int]) -> float:
        """Share of the given steps in which an engine computes nothing, on average over engines."""
        wall_s = cpu_s = 0.0
        for step in steps:
            (began, cpu_before), (ended, cpu_after) = self._at_step[step - 1], self._at_step[step]
            wall_s += ended - began
            cpu_s += cpu_after - cpu_before
        return 1.0 - cpu_s / wall_s / len(self._engines)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def train(
    entry: Sequence[str], assets: Assets, folder: Path, *, steps: int, seed: int, engines: int = 1
) -> tuple[RunMetrics, EngineLoad]:
    """One run, from its start: validated before, at half and at the end. SIGTERM ends it, as Ctrl-C does.

    Args:
        entry: the module to run, and overrides beside those that fit verl to this machine.
        folder: for its log and metrics.

    Raises:
        RuntimeError: when training fails; the log is in `folder`.
    """
    exit_on_signals()
    folder.mkdir(parents=True, exist_ok=True)
    metrics, load = RunMetrics(file=folder / "metrics.jsonl"), EngineLoad(count=engines)
    metrics.file.unlink(missing_ok=True)
    with RayFolder() as ray_folder:
        settings = RunSettings(
            assets=assets, output=folder, ray_folder=ray_folder.path, steps=steps, seed=seed, engines=engines
        )
        module, *options = entry
        command = [sys.executable, "-m", module, *verl_overrides(settings), *options]
        environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=ray_folder.path)
        process = TrainingProcess(command, environment=environment, log_file=folder / "train.log")
        with process:
            while process.exit_code is None:
                process.watch(_SAMPLING_S)
                load.note(metrics.read_new())
    if process.exit_code != 0:
        raise RuntimeError(f"exit code {process.exit_code}; see {folder / 'train.log'}")
    return metrics, load
