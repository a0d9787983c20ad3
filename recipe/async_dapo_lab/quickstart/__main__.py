"""The recipe on the real stack, without a GPU: `python -m recipe.async_dapo_lab.quickstart`.

Makes a tiny model and a task for it, trains it through the recipe's own entry point, and reports what
happened. Its folder keeps the last two checkpoints: the same command with `--output` of that folder goes on from them.
Its processes are forks of one that has imported vLLM and torch while the model was made.
Hydra overrides for the entry point follow after `--`.
"""

import argparse
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ...async_dapo.config.values import ConfigError
from ...async_dapo.record.checkpoint_folder import step_of
from ...async_dapo.record.run_files import set_aside
from ...async_dapo.record.words import counted
from ...async_dapo.runtime.logs import note_start
from .. import train
from ..command_line import end_without, path
from ..report.headline import headline
from ..report.run import Run
from ..report.write import report_the_end, write_report
from ..saved_run import SavedRun
from .activation import run_environment
from .fork_server import ForkedTraining, ForkServer, NoForkServer
from .model_and_data import Assets, prepare_assets
from .overrides import (
    QUICK_LEARNING_RATE,
    QUICK_STEPS,
    RunSettings,
    kept_overrides,
    quick_overrides,
    recipe_overrides,
    verl_overrides,
    verl_sync_overrides,
)
from .run_metrics import RunMetrics
from .supervision import RayFolder, TrainingProcess, exit_on_signals
from .train_log import TrainLog

RECIPE, VERL_SYNC = train.MODULE, "verl.trainer.main_ppo"
_CODE_PATH = Path(__file__).resolve().parents[__package__.count(".") + 1]
_WATCH_S = 1.0
_LOG_TAIL_LINES = 40
_MOST_CAUSES = 5  # of failed groups, that are told
WITHIN = "QUICKSTART_WITHIN"
QUESTION = "47+4*03"  # one of the task's

_STEPS_OVERRIDE = re.compile(r"(\+\+)?trainer\.total_training_steps=\d+")  # the same as --steps

console = Console()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    steps: int
    compare: bool
    seed: int
    output: Path
    timeout_s: float
    stall_s: float
    overrides: tuple[str, ...]


class QuickStartFailed(Exception):
    """Training ended without its steps; the message says how, and the log says more."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    end_without("record", "loggers", otherwise="train with options of your own (docs/get_started.md)")
    options.output.mkdir(parents=True, exist_ok=True)
    exit_on_signals()
    try:
        _run(options)
    except QuickStartFailed as failure:
        _show_log_tail(failure.log)
        _say(f"full log: {failure.log}")
        if (step := _saved_step(options)) is not None:
            _say(f"checkpoint of step {step}; it goes on from there with: {_again(options)}")
        console.print(f"[bold red]failed:[/] {escape(str(failure))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        report = report_the_end(options.output)
        lines = [] if report is None else [f"report: {report}"]
        _say("\n".join(["interrupted; everything it started has been ended", *lines, *_what_next(options)]))
        sys.exit(128 + signal.SIGINT)


def _run(options: Options) -> None:
    started = time.monotonic()
    note_start()
    _say("preparing model and data; then starting Ray, vLLM and FSDP (about a minute)")
    with ForkServer() as forks:
        assets = prepare_assets(options.output.parent, seed=options.seed)
        python, ray_folder = _python_of(forks), forks.folder / "ray"
        new_steps, peak_memory_bytes = _train(options, assets, python, ray_folder, system=RECIPE)
        wall_s = time.monotonic() - started
        run, baseline = Run.load(options.output), None
        if options.compare:
            verl = replace(options, output=options.output / "verl_sync")
            verl.output.mkdir(exist_ok=True)
            _say("the same training by verl alone, in its sync mode")
            _train(verl, assets, python, ray_folder, system=VERL_SYNC)
            baseline = Run.load(verl.output)
            write_report([options.output, verl.output])
    _say(f"\n{headline(run, baseline)}")
    own = f"{new_steps} of " if new_steps < len(run.steps) else ""
    trained = f"{own}{counted(len(run.steps), 'step')}"
    _say(f"{trained} in {wall_s:.0f} s, at most {peak_memory_bytes / 1e9:.1f} GB of memory")
    _say(f"{options.output}: report.html, train.log, metrics.jsonl, tensorboard/")
    _say("\n".join(_what_next(options)))
    for cause, count in run.causes.most_common(_MOST_CAUSES):
        failed = f"[bold red]{counted(count, 'group')} failed:[/]"
        console.print(f"{failed} {escape(cause)}", highlight=False, soft_wrap=True)


def _python_of(forks: ForkServer) -> str | None:
    """The executable of its forks; None, and a line that says so, where it has not come up."""
    try:
        return forks.executable()
    except NoForkServer as error:
        _say(f"each process imports vLLM and torch by itself, for a minute: the fork server has ended: {error}")
        return None


def _train(options: Options, assets: Assets, python: str | None, ray_folder: Path, *, system: str) -> tuple[int, int]:
    """Returns the steps that it trained, not those before it went on, and the most memory it used [bytes].

    Args:
        python: executable of a fork server, that of this process without one.
    """
    metrics = RunMetrics.after(options.output / "metrics.jsonl")
    log_file = options.output / "train.log"
    for file in (metrics.file, log_file):  # of an earlier start into the same folder
        set_aside(file)
    with RayFolder(ray_folder) as ray:
        environment = run_environment(os.environ, code_path=_CODE_PATH, output=options.output, ray_folder=ray.path)
        environment["TMPDIR"] = str(ray.path)
        command = [python or sys.executable, *_command(options, assets, ray.path, system)]
        kind = TrainingProcess if python is None else ForkedTraining
        process, lines = kind(command, environment=environment, log_file=log_file), StepLines(metrics, options.steps)
        try:
            with process:
                try:
                    _follow(process, metrics, lines, options)
                except KeyboardInterrupt:
                    _say("interrupted; everything it started is being ended: up to half a minute")
                    raise
        except QuickStartFailed:
            ray.save_logs(options.output / "ray_logs")
            raise
        finally:
            lines.say_new()  # that have ended since the last look: checkpoints may name them
    return metrics.new_steps, process.peak_memory_bytes


class StepLines:
    """The lines of steps, as the training itself writes them."""

    def __init__(self, metrics: RunMetrics, total_steps: int) -> None:
        from ...async_dapo.extensions.loggers.step_line import Pace, step_line

        self._metrics, self._line = metrics, partial(step_line, pace=Pace(total_steps))

    def say_new(self) -> bool:
        """Whether there were new ones."""
        lines = list(self._metrics.read_lines())
        for step, data in lines:
            _say(self._line(step, data))
        return bool(lines)


def _follow(process: TrainingProcess, metrics: RunMetrics, lines: StepLines, options: Options) -> None:
    """Until training has ended: says the phases of its start-up, calls that fail, and a line for each step.

    Raises:
        QuickStartFailed: it ended with an error, ran into a time limit, or trained too few steps.
    """
    started = last_news = time.monotonic()
    log = TrainLog(file=options.output / "train.log")
    while True:
        exit_code = process.exit_code
        for event in log.new_events():
            _say(event)
        if lines.say_new():
            last_news = time.monotonic()
        if exit_code is not None:
            break
        now = time.monotonic()
        if now - started > options.timeout_s:
            raise QuickStartFailed(f"not done after {options.timeout_s:.0f} s (--timeout-s); ended it", log.file)
        if now - last_news > options.stall_s:
            said = f"no step was finished for {options.stall_s:.0f} s (--stall-s): it hangs; ended it"
            raise QuickStartFailed(said, log.file)
        process.watch(_WATCH_S)
    if exit_code != 0:
        raise QuickStartFailed(log.last_words() or f"training ended with exit code {exit_code}", log.file)
    if not metrics.by_step:
        said = "training ended without a line in its metrics file (is `file` in trainer.logger?)"
        raise QuickStartFailed(said, log.file)


def _command(options: Options, assets: Assets, ray_folder: Path, system: str) -> list[str]:
    """What Python is given."""
    run = RunSettings(
        assets=assets,
        output=options.output,
        ray_folder=ray_folder,
        steps=options.steps,
        seed=options.seed,
        learning_rate=QUICK_LEARNING_RATE,
    )
    common = [*verl_overrides(run), *quick_overrides(options.overrides)]
    if system == VERL_SYNC:
        known = [override for override in options.overrides if "async_dapo" not in override]
        return ["-m", VERL_SYNC, *common, *verl_sync_overrides(), *known]
    return [
        "-m",
        RECIPE,
        *common,
        *recipe_overrides(strategy="partial", stop_rule=None),
        *kept_overrides(options.output, steps=options.steps),
        *options.overrides,
    ]


def _what_next(options: Options) -> list[str]:
    """Commands that go on with what the run has left."""
    if (step := _saved_step(options)) is None:
        return [f"no checkpoint is complete; from the first step again: {_again(options)}"]
    lab, folder = f"{_python()} {__package__.rpartition('.')[0]}", shlex.quote(str(_short(options.output)))
    more = replace(options, steps=max(options.steps, step + QUICK_STEPS)) if step >= options.steps else options
    return [
        f"checkpoint of step {step}; what next:",
        f"  go on:    {_again(more)}",
        f"  ask it:   {lab}.evaluate {folder} --ask {QUESTION}",
        f"  evaluate: {lab}.evaluate {folder}",
        f"  export:   {lab}.export {folder} --output {folder}/model",
    ]


def _saved_step(options: Options) -> int | None:
    """Of the newest complete checkpoint."""
    try:
        return step_of(SavedRun.at(options.output).checkpoint())
    except ConfigError:
        return None


def _again(options: Options) -> str:
    """The command of this quick start, with its folder."""
    own = ["--output", str(_short(options.output)), "--seed", str(options.seed), "--steps", str(options.steps)]
    overrides = ["--", *options.overrides] if options.overrides else []
    return f"{_python()} {__package__} {shlex.join([*own, *overrides])}"


def _python() -> str:
    """With the command of the variable `WITHIN` in front, which starts a service, such as an example's, and runs the
    rest beside it. Where Python would not find this package from the working folder, its place comes first, and then
    those of the user's own.
    """
    own = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place not in ("", str(_CODE_PATH))]
    places = shlex.quote(os.pathsep.join([str(_CODE_PATH), *own]))
    found = "" if Path.cwd() == _CODE_PATH else f"PYTHONPATH={places}"
    python = shlex.quote(str(_short(Path(sys.executable))))
    return " ".join(filter(None, [found, os.environ.get(WITHIN), python, "-m"]))


def _short(path: Path) -> Path:
    """Relative to the working folder where it lies in it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _parse(arguments: Sequence[str] | None) -> Options:
    own, overrides = _split(list(sys.argv[1:] if arguments is None else arguments))
    parser = argparse.ArgumentParser(
        prog="quickstart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=QUICK_STEPS)
    parser.add_argument("--compare", action="store_true", help="train the same with verl's sync mode afterwards")
    parser.add_argument("--seed", type=int, default=0)
    now = time.strftime("%Y%m%d-%H%M%S")  # with the process's number: two may start in the same second
    parser.add_argument(
        "--output", type=path, default=Path("outputs", "quickstart", f"{now}-{os.getpid()}"), metavar="DIR"
    )
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="end a run that takes longer")
    parser.add_argument("--stall-s", type=float, default=600.0, help="end a run that finishes no step for so long")
    parsed = parser.parse_args(own)
    for override in [one for one in overrides if _STEPS_OVERRIDE.fullmatch(one)]:  # of an example, or its user
        overrides.remove(override)
        parsed.steps = int(override.partition("=")[2])
    if parsed.steps < 1:
        parser.error(f"--steps={parsed.steps}: must be at least 1")
    parsed.output = parsed.output.absolute()
    return Options(**vars(parsed), overrides=tuple(overrides))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def _show_log_tail(log: Path) -> None:
    if log.exists():
        lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        _say("\n".join([f"last lines of {log}:", *lines]))


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
