"""One training run as the benchmarks measure it: on this machine's CPU, with its engines' load."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import RunSettings, verl_overrides
from recipe.async_dapo_lab.quickstart.run_metrics import RunMetrics
from recipe.async_dapo_lab.quickstart.supervision import RayFolder, TrainingProcess, exit_on_signals
from recipe.async_dapo_lab.quickstart.task import TaskShape

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
class RunLoad:
    """CPU seconds of a run's processes, step by step.

    Args:
        engines: of this run.
    """

    process: TrainingProcess
    engines: int
    _cpu_s: dict[psutil.Process, float] = field(default_factory=dict)  # of every process seen, ended ones included
    _engines: set[psutil.Process] = field(default_factory=set)
    _at_step: dict[int, "_Moment"] = field(default_factory=dict)

    def note(self, new_steps: list[int]) -> None:
        """Call when lines of the metrics file have come."""
        if not new_steps:
            return
        for process in self.process.descendants():
            try:
                with process.oneshot():
                    command, times = " ".join(process.cmdline()), process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._cpu_s[process] = times.user + times.system
            if _ENGINE_PROCESS in command:
                self._engines.add(process)
        if len(self._engines) != self.engines:
            raise RuntimeError(f"{len(self._engines)} engines of {self.engines} were found")
        engines_s = sum(self._cpu_s[engine] for engine in self._engines)
        moment = _Moment(at_s=time.monotonic(), engines_cpu_s=engines_s, cpu_s=sum(self._cpu_s.values()))
        self._at_step |= dict.fromkeys(new_steps, moment)

    def idle_share(self, steps: Iterable[int]) -> float:
        """Share of the given steps in which an engine computes nothing, on average over engines."""
        wall_s = cpu_s = 0.0
        for step in steps:
            began, ended = self._at_step[step - 1], self._at_step[step]
            wall_s += ended.at_s - began.at_s
            cpu_s += ended.engines_cpu_s - began.engines_cpu_s
        return 1.0 - cpu_s / wall_s / self.engines

    def step_cpu_s(self, steps: Iterable[int]) -> list[float]:
        """CPU seconds of all processes in each of the given steps."""
        return [self._at_step[step].cpu_s - self._at_step[step - 1].cpu_s for step in steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """When a step's line came."""

    at_s: float
    engines_cpu_s: float
    cpu_s: float


def train(
    entry: Sequence[str], assets: Assets, folder: Path, *, steps: int, seed: int, engines: int = 1
) -> tuple[RunMetrics, RunLoad]:
    """One run, from its start: validated before, at half and at the end. SIGTERM ends it, as Ctrl-C does.

    Args:
        entry: the module to run, and overrides beside those that fit verl to this machine.
        folder: for its log and metrics.

    Raises:
        RuntimeError: when training fails; the log is in `folder`.
    """
    exit_on_signals()
    folder.mkdir(parents=True, exist_ok=True)
    metrics = RunMetrics(file=folder / "metrics.jsonl")
    metrics.file.unlink(missing_ok=True)
    with RayFolder() as ray_folder:
        settings = RunSettings(
            assets=assets, output=folder, ray_folder=ray_folder.path, steps=steps, seed=seed, engines=engines
        )
        module, *options = entry
        command = [sys.executable, "-m", module, *verl_overrides(settings), *options]
        environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=ray_folder.path)
        process = TrainingProcess(command, environment=environment, log_file=folder / "train.log")
        load = RunLoad(process=process, engines=engines)
        with process:
            while process.exit_code is None:
                process.watch(_SAMPLING_S)
                load.note(metrics.read_new())
    if process.exit_code != 0:
        raise RuntimeError(f"exit code {process.exit_code}; see {folder / 'train.log'}")
    return metrics, load
