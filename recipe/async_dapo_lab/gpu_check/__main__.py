"""The first hour on GPUs: whether the recipe works here, and how fast. `python -m recipe.async_dapo_lab.gpu_check`

Nothing is downloaded: model and task are made on the spot. Each check is a line with its seconds: PASS, FAIL with the
remedy, or SKIP. Exit status 0 only without FAIL. Themes 1 and 3 have run on an H100; 2 and 4 on CPUs alone.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..quickstart.activation import cpu_environment
from ..quickstart.supervision import exit_on_signals
from . import machine, minute, speed, training
from .assets import make_config, prepare, prepare_family
from .verdicts import Results, skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    gpus: int
    device: str
    only: int | None
    cases: list[str] | None
    minute: bool
    tensor_parallel_size: int
    model: Path | None
    output: Path
    timeout_s: float

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"


class Check:
    """One run of the command: themes in order, each in processes of its own."""

    def __init__(self, options: Options, results: Results) -> None:
        self._options, self._results = options, results

    def run(self) -> None:
        options, results = self._options, self._results
        results.begin(machine.THEME)
        verdicts = machine.look(options.device, gpus=options.gpus, output=options.output)
        for name, verdict in verdicts.items():
            results.add(name, verdict)
        if any(verdicts[name].is_failure for name in machine.NEEDED):
            results.begin("2. to 4.")
            results.add("all other checks", skipped("mend the machine first"))
            return
        results.note("makes a model and data, and starts engines: the next lines take minutes")
        self._assets = prepare(options.output, device=options.device)
        self._model = options.model or self._assets.model
        if options.minute:
            self._minute()
            return
        themes = {"2. training": self._training, "3. speed": self._speed, "4. several GPUs": self._several}
        for number, (theme, check) in enumerate(themes.items(), start=2):
            if options.only in (None, number):
                results.begin(theme)
                check()

    def _minute(self) -> None:
        """An engine without Ray, one trained step, a full cache; what fails early makes the rest needless."""
        options, results = self._options, self._results
        results.begin("2. the first minute")
        folder = options.output / "minute"
        about = minute.ON_A_CPU if options.is_cpu else {"graphs": training.GRAPHS}
        environment = self._engine_environment()
        for stage, judge in (
            ("life", partial(minute.judge_life, device=options.device)),
            ("pressure", minute.judge_pressure),
        ):
            began_s = time.perf_counter()
            settings = minute.MinuteSettings(stage=stage, model=str(self._model), folder=str(folder), **about)
            facts, ended = minute.run_stage(settings, environment=environment)
            verdicts = dict(judge(facts, ended))
            for name, verdict in verdicts.items():
                results.add(name, verdict, seconds=time.perf_counter() - began_s)
            if any(verdict.is_failure for verdict in verdicts.values()):
                return
            if stage == "life":
                self._train(replace(training.CASES[0], steps=1))

    def _training(self) -> None:
        for case in training.CASES:
            if case.name not in (self._options.cases or [case.name]):
                continue
            if case.on_gpus_only and self._options.is_cpu:
                self._results.add(case.name, skipped("on GPUs only"))
            elif case.package and find_spec(case.package) is None:
                needed = training.PACKAGES[case.package]
                self._results.add(case.name, skipped(f"needs a package; run: pip install {needed}"))
            else:
                self._train(case)

    def _train(self, case: training.Case) -> None:
        options = self._options
        folder = options.output / "training" / case.name.replace(", ", "-").replace(" ", "_")
        assets, model = self._assets, self._model
        began_s = time.perf_counter()
        if case.family:
            assets = prepare_family(case.family, folder, device=options.device)
            model = assets.model
        steps, ended = training.train(
            case, assets, model, device=options.device, folder=folder, timeout_s=options.timeout_s
        )
        bounds = case.bounds or training.BOUNDS[options.device]
        verdict = training.judge_training(steps, ended, case=case, bounds=bounds)
        self._results.add(case.name, verdict, seconds=time.perf_counter() - began_s)

    def _speed(self) -> None:
        """On a GPU of an engine with an 8B model's sizes, or one's own model; weights are made up."""
        options, began_s = self._options, time.perf_counter()
        settings = speed.SpeedSettings(model=str(self._model), folder=str(options.output / "speed"))
        environment = self._engine_environment()
        if options.is_cpu:
            changes = speed.ON_A_CPU
        else:
            model = options.model or make_config(options.output / "large_model")
            kwargs = {"tensor_parallel_size": options.tensor_parallel_size, "compilation_config": training.GRAPHS}
            changes = {"model": str(model), "engine_kwargs": kwargs}
        facts, ended = speed.run_engine(
            replace(settings, **changes), environment=environment, timeout_s=options.timeout_s
        )
        verdict = speed.judge_speed(facts, ended)
        self._results.add("decode", verdict, seconds=time.perf_counter() - began_s, measured=facts)

    def _engine_environment(self) -> dict[str, str]:
        environment = cpu_environment(os.environ, code_path=training.CODE_PATH)
        if not self._options.is_cpu:
            del environment["VERL_PLATFORM"]
        return environment | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "INFO"}

    def _several(self) -> None:
        for case in training.OF_TWO:
            if self._options.gpus < case.gpus:
                self._results.add(case.name, skipped("needs --gpus 2"))
            else:
                self._train(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and tell. Returns the exit status."""
    options = _parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    exit_on_signals()
    results, began_s = Results(), time.perf_counter()
    try:
        Check(options, results).run()
    finally:
        about: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "device": options.device,
            "seconds": round(time.perf_counter() - began_s, 1),
        }
        exit_code = results.finish(options.output, about=about)
    return exit_code


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine to check; theme 4 needs two or more")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: check what a CPU can")
    parser.add_argument("--only", type=int, choices=range(2, 5), metavar="N", help="beside theme 1 only theme N")
    parser.add_argument(
        "--minute", action="store_true", help="theme 1, then the first minute alone: an engine's life, a step"
    )
    cases = [case.name for case in training.CASES]
    parser.add_argument("--cases", nargs="+", choices=cases, metavar="CASE", help=f"of theme 2 only {', '.join(cases)}")
    parser.add_argument("--model", type=Path, help="folder of a model to check with, instead of one made here")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of the engine in theme 3")
    now = time.strftime("%Y%m%d-%H%M%S")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs", "gpu_check", f"{now}-{os.getpid()}"), metavar="DIR"
    )
    parser.add_argument("--timeout-s", type=float, default=900.0, help="end a process that takes longer")
    parsed = parser.parse_args(arguments)
    if parsed.gpus < 1:
        parser.error(f"--gpus={parsed.gpus}: must be at least 1")
    if not 1 <= parsed.tensor_parallel_size <= (1 if parsed.device == "cpu" else parsed.gpus):
        parser.error(f"--tensor-parallel-size={parsed.tensor_parallel_size}: at most --gpus={parsed.gpus}, on a CPU 1")
    if parsed.model is not None and not (parsed.model / "config.json").is_file():
        parser.error(f"--model={parsed.model}: has no config.json; give a model's folder")
    parsed.output = parsed.output.absolute()
    parsed.model = parsed.model and parsed.model.absolute()
    return Options(**vars(parsed))


if __name__ == "__main__":
    sys.exit(main())
