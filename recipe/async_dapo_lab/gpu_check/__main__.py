"""The first hour on GPUs: whether the recipe works here, and how fast. `python -m recipe.async_dapo_lab.gpu_check`

Nothing is downloaded: model and task are made on the spot. Each check is a line with its seconds: PASS, FAIL with the
remedy, or SKIP. Exit status 0 only without FAIL. Themes 1 and 3 have run on an H100; 2 and 4 on CPUs alone.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..command_line import path
from ..quickstart.activation import cpu_environment
from ..quickstart.supervision import exit_on_signals
from . import machine, minute, speed, training
from .assets import make_config, prepare, prepare_family
from .verdicts import Results, failed, passed, skipped
from .watch import MARK, LeastFree, Leftovers

# Of the first minute's trainings, on a GPU; the rest has its limits in `minute.py`.
STEP_LIMIT_S, SEPARATE_LIMIT_S = 150.0, 200.0
LEAST_FREE_GB = 1.0  # of a GPU in a training; with less, the next larger batch or weight has no room
FIRST, STEP, SEPARATE = "life", "step", training.SEPARATE.name
MINUTE = (*minute.ENGINES, STEP, SEPARATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    gpus: int
    device: str
    only: int | None
    cases: list[str] | None
    minute: list[str] | None
    beside: bool
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
        self._free = LeastFree(options.device)
        self._mark = {MARK: f"{options.output} {os.getpid()}"}

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
        if options.minute is not None:
            self._minute(options.minute or MINUTE)
            return
        themes = {"2. training": self._training, "3. speed": self._speed, "4. several GPUs": self._of_several_gpus}
        for number, (theme, check) in enumerate(themes.items(), start=2):
            if options.only in (None, number):
                results.begin(theme)
                check()

    def _minute(self, chosen: Sequence[str]) -> None:
        """Engines without Ray and one trained step; then what fills a cache, and engines on GPUs of their own."""
        options, results = self._options, self._results
        results.begin("2. the first minute")
        left = Leftovers(options.device, mark=self._mark[MARK])
        others = [key for key in minute.ENGINES if key in chosen and key != FIRST]
        if FIRST in chosen and not self._engines(FIRST):
            if set(chosen) - {FIRST}:
                results.add("all other checks", skipped("an engine that does not start makes them needless"))
        else:
            if STEP in chosen:
                self._train(replace(training.CASES[0], steps=1), limit_s=STEP_LIMIT_S, finding="finding 13")
            if others:
                self._engines(*others)
            if SEPARATE in chosen:
                self._separate()
        results.add("least free memory", passed(self._free.in_words()), measured=self._free.gb)
        results.add("leftovers", left.judge())

    def _separate(self) -> None:
        """Engines on a GPU of their own, which get weights twice. A CPU stands for any number of GPUs."""
        case, options = replace(training.SEPARATE, steps=2), self._options
        if not options.is_cpu and options.gpus < case.needed_gpus:
            self._results.add(case.name, skipped(f"needs --gpus {case.needed_gpus}"))
        elif why := case.why_left_out():
            self._results.add(case.name, skipped(why))
        else:
            self._train(case, limit_s=SEPARATE_LIMIT_S, finding="findings 4 and 5")

    def _engines(self, *engines: str) -> bool:
        """Whether the first part of them went well."""
        options = self._options
        drafting = self._model
        if "mtp" in engines:
            drafting = prepare_family("own head", options.output / "own_head", device=options.device).model
        settings = minute.MinuteSettings(
            model=str(self._model),
            drafting_model=str(drafting),
            folder=str(options.output / "minute"),
            kv_cache_bytes=training.KV_CACHE_BYTES if options.beside else None,
            **(minute.ON_A_CPU if options.is_cpu else {"graphs": training.GRAPHS}),
        )
        is_well: list[bool] = []
        environment = self._engine_environment()
        for key, verdict, facts in minute.measure(engines, settings, environment=environment, free=self._free):
            numbers = {name: fact for name, fact in facts.items() if not isinstance(fact, list)}
            seconds = numbers.pop("seconds", 0.0)
            self._results.add(minute.PARTS[key].name, verdict, seconds=seconds, measured=numbers)
            is_well.append(not verdict.is_failure)
        return is_well[0]

    def _training(self) -> None:
        for case in training.CASES:
            if case.name not in (self._options.cases or [case.name]):
                continue
            if case.on_gpus_only and self._options.is_cpu:
                self._results.add(case.name, skipped("on GPUs only"))
            elif why := case.why_left_out():
                self._results.add(case.name, skipped(why))
            else:
                self._train(case)

    def _train(self, case: training.Case, *, limit_s: float | None = None, finding: str = "") -> None:
        """
        Args:
            limit_s: on a GPU; None: what the command says.
            finding: of docs/gpu.md, that a failure may be.
        """
        options, timeout_s, free = self._options, self._options.timeout_s, LeastFree(self._options.device)
        if limit_s is not None:
            timeout_s = min(timeout_s, limit_s * (minute.CPU_TIMES if options.is_cpu else 1))
        folder = options.output / "training" / case.name.replace(", ", "-").replace(" ", "_")
        assets, model = self._assets, self._model
        began_s = time.perf_counter()
        if case.family:
            assets = prepare_family(case.family, folder, device=options.device)
            model = assets.model
        steps, ended = training.train(
            self._adapted(case),
            assets,
            model,
            device=options.device,
            folder=folder,
            timeout_s=timeout_s,
            on_watch=free.look,
        )
        bounds = case.bounds or training.BOUNDS[options.device]
        verdict = training.judge_training(steps, ended, case=case, bounds=bounds)
        if not verdict.is_failure and not options.is_cpu and min(free.gb.values(), default=math.inf) < LEAST_FREE_GB:
            verdict = failed(f"{free.in_words()} were free at the least", "lower gpu_memory_utilization")
        if verdict.is_failure and finding:
            verdict = failed(f"{verdict.found} ({finding} of docs/gpu.md)", verdict.remedy)
        self._free.note(free.gb)
        self._results.add(
            case.name, verdict, seconds=time.perf_counter() - began_s, measured={"least_free_gb": free.gb}
        )

    def _adapted(self, case: training.Case) -> training.Case:
        own = training.BESIDE if self._options.beside and not self._options.is_cpu else ()
        return replace(case, environment=case.environment | self._mark, overrides=(*case.overrides, *own))

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
        return (
            environment | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "INFO"} | self._mark
        )

    def _of_several_gpus(self) -> None:
        for case in training.OF_TWO:
            if self._options.gpus < case.needed_gpus:
                self._results.add(case.name, skipped(f"needs --gpus {case.needed_gpus}"))
            elif why := case.why_left_out():
                self._results.add(case.name, skipped(why))
            else:
                self._train(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and tell. Returns the exit status."""
    options = parse(arguments)
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


def parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine to check; theme 4 needs two or more")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: check what a CPU can")
    parser.add_argument("--only", type=int, choices=range(2, 5), metavar="N", help="beside theme 1 only theme N")
    parser.add_argument(
        "--minute",
        nargs="*",
        choices=MINUTE,
        metavar="PART",
        help=f"theme 1, then the first minute alone, or of it only {', '.join(MINUTE)}",
    )
    parser.add_argument("--beside", action="store_true", help="other work uses the GPU: small KV caches of a set size")
    cases = [case.name for case in training.CASES]
    parser.add_argument("--cases", nargs="+", choices=cases, metavar="CASE", help=f"of theme 2 only {', '.join(cases)}")
    parser.add_argument("--model", type=path, help="folder of a model to check with, instead of one made here")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of the engine in theme 3")
    now = time.strftime("%Y%m%d-%H%M%S")
    parser.add_argument(
        "--output", type=path, default=Path("outputs", "gpu_check", f"{now}-{os.getpid()}"), metavar="DIR"
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
