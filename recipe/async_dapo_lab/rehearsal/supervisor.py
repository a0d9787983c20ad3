"""Runs a rehearsal in a process of its own, watches it, and reports. Ctrl-C ends it and whatever it has started."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ...async_dapo.startup.overrides import show_usage
from ..command_line import path
from ..quickstart.activation import run_environment
from ..quickstart.overrides import quoted
from ..quickstart.run_metrics import RunMetrics
from ..quickstart.supervision import RayFolder, TrainingProcess, exit_on_signals
from .options import CONFIG, RehearsalOptions
from .report import Ended, Rehearsal, how_long, load_rehearsal, table

MODULE = f"{__package__.rpartition('.')[0]}.rehearse"
OUTPUT_OPTION = "rehearsal.output="
DEFAULT_OUTPUT = Path("outputs", "rehearsal")
_WATCH_S = 2.0
_LOG_TAIL_LINES = 40
CANNOT_SAY = (
    "Emulated engines do not feel what the machine around them computes. Where engines share their CPUs with clients "
    "and trainer, as in a real run on CPUs, it cannot order systems that differ by less than 21 %."
)
_CODE_PATH = Path(__file__).resolve().parents[__package__.count(".") + 1]

console = Console()


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class RehearsalFailed(Exception):
    """The run ended without its steps; the message says how."""


def main(arguments: Sequence[str] | None = None) -> None:
    overrides = list(sys.argv[1:] if arguments is None else arguments)
    show_usage(overrides, module=MODULE, about="Rehearses a training on emulated engines: docs/plan_check_rehearse.md.")
    exit_on_signals()
    _say(CANNOT_SAY)
    try:
        rehearsal = rehearse(overrides)
    except RehearsalFailed as failure:
        _say(str(failure))
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted; everything it started has been ended")
        sys.exit(128 + signal.SIGINT)
    _say(table(rehearsal))


def rehearse(overrides: Sequence[str]) -> Rehearsal:
    """One rehearsal, with its results in its folder: `rehearsal.json`, logs and records.

    Raises:
        RehearsalFailed: with the message of the run, if it refuses its options.
    """
    folder = output_folder(overrides)
    folder.mkdir(parents=True, exist_ok=True)
    ended = _run(overrides, folder)
    rehearsal = load_rehearsal(*_load(folder), ended)
    (folder / "rehearsal.json").write_text(json.dumps(asdict(rehearsal), indent=2) + "\n")
    return rehearsal


def _load(folder: Path) -> tuple[DictConfig, RehearsalOptions]:
    """The configuration that the run goes by."""
    config = OmegaConf.load(folder / CONFIG)
    assert isinstance(config, DictConfig)
    return config, RehearsalOptions.from_hydra(config)


def output_folder(overrides: Sequence[str]) -> Path:
    """The folder that the last of the overrides names."""
    named = [one.removeprefix(OUTPUT_OPTION) for one in overrides if one.startswith(OUTPUT_OPTION)]
    return (path(named[-1].strip("'\"")) if named else DEFAULT_OUTPUT).absolute()


def _run(overrides: Sequence[str], folder: Path) -> Ended:
    metrics = RunMetrics(file=folder / "metrics.jsonl")
    for stale in (metrics.file, folder / CONFIG):
        stale.unlink(missing_ok=True)
    started = time.monotonic()
    log = folder / "train.log"
    with RayFolder() as ray:
        command = _command(overrides, folder, ray)
        environment = run_environment(os.environ, code_path=_CODE_PATH, output=folder, ray_folder=ray.path)
        environment["TMPDIR"] = str(ray.path)
        process = TrainingProcess(command, environment=environment, log_file=log)
        with process:
            is_told = False
            while process.exit_code is None:
                process.watch(_WATCH_S)
                if not is_told and (folder / CONFIG).exists():
                    is_told = True
                    _say(how_long(*_load(folder)))
    metrics.read_new()
    if process.exit_code != 0 or not metrics.trained_steps:
        raise RehearsalFailed(cause_of_failure(log))
    return Ended(wall_s=time.monotonic() - started, peak_memory_bytes=process.peak_memory_bytes)


def _command(overrides: Sequence[str], folder: Path, ray: RayFolder) -> list[str]:
    return [
        sys.executable,
        *(["-P"] if sys.flags.safe_path else []),  # as the reference scripts start this process
        "-m",
        f"{__package__}.run",
        *overrides,
        f"hydra.run.dir={quoted(folder / 'hydra')}",
        f"++ray_kwargs.ray_init._temp_dir={quoted(ray.path)}",
    ]


def cause_of_failure(log: Path) -> str:
    """The message of a configuration that was refused, else the end of the log."""
    lines = log.read_text(errors="replace").splitlines()
    refusals = [number for number, line in enumerate(lines) if line.startswith("async_dapo: ")]
    shown = lines[refusals[-1] :] if refusals else [f"the rehearsal failed; last lines of {log}:"]
    return "\n".join(shown if refusals else shown + lines[-_LOG_TAIL_LINES:])
