"""The first hour on GPUs: whether the recipe works here, and how fast. `python -m recipe.async_dapo_lab.gpu_check`

Nothing is downloaded: model and task are made on the spot. Each check is a line with its seconds: PASS, FAIL with the
remedy, or SKIP. Exit status 0 only without FAIL. Themes 1 and 5 have run on an H100; 2, 3, 4 and 6 on CPUs alone.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...async_dapo.config.values import SPECULATIVE_CONFIGS, SUFFIX_PACKAGE, Drafts
from ..quickstart.activation import cpu_environment
from ..quickstart.supervision import exit_on_signals
from . import engine, machine, training
from .assets import make_config, prepare
from .engine import CONTEXTS_TOK, ON_A_CPU, EngineSettings, Facts, Section
from .speed import LONG_TOK
from .verdicts import Results, skipped

# CUDA graphs without torch.compile, whose minute says little of decoding.
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    gpus: int
    device: str
    only: int | None
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
        self.machine: machine.Machine | None = None
        self._plain_tokens_per_s: float | None = None
        self._bounds = "float32" if options.is_cpu else "bfloat16"

    def run(self) -> None:
        options, results = self._options, self._results
        results.begin("1. machine")
        self.machine = machine.probe(options.device, output=options.output)
        verdicts = machine.judgements(self.machine, gpus=options.gpus)
        for name, verdict in verdicts.items():
            results.add(name, verdict)
        if any(verdicts[name].is_failure for name in machine.NEEDED):
            results.begin("2. to 6.")
            results.add("all other checks", skipped("mend the machine first"))
            return
        results.note("makes a model and data, and starts engines: the next lines take minutes")
        self._assets = prepare(options.output, device=options.device)
        self._model = options.model or self._assets.model
        themes = {
            "2. engine": self._engine,
            "3. training": self._training,
            "4. drafts and FP8 cache": self._cheaper_tokens,
            "5. speed": self._speed,
            "6. several GPUs": self._several,
        }
        for number, (theme, check) in enumerate(themes.items(), start=2):
            if options.only in (None, number):
                results.begin(theme)
                check()

    def _engine(self) -> None:
        sections = (Section.GENERATE, Section.LOG_PROBS)
        facts = self._run_engine("engine", *sections)
        if (plain := facts.get(Section.GENERATE)) is not None:
            self._plain_tokens_per_s = plain["tokens"] / plain["generating_s"]

    def _training(self) -> None:
        for case in training.cases(self._options.device):
            self._train(case)

    def _train(self, case: training.Case) -> None:
        options = self._options
        began_s = time.perf_counter()
        steps, ended = training.train(
            case,
            self._assets,
            self._model,
            device=options.device,
            folder=options.output / "training" / case.name.replace(", ", "-").replace(" ", "_"),
            timeout_s=options.timeout_s,
        )
        verdict = training.judge_training(steps, ended, case=case, bounds=training.BOUNDS[options.device])
        self._results.add(case.name, verdict, seconds=time.perf_counter() - began_s)

    def _cheaper_tokens(self) -> None:
        """Drafts and an FP8 cache, each in an engine of its own, beside the plain one."""
        if find_spec("arctic_inference") is None:
            self._results.add("drafts", skipped(f"needs a package; run: pip install {SUFFIX_PACKAGE}"))
        else:
            drafts = {"speculative_config": SPECULATIVE_CONFIGS[Drafts.SUFFIX]}
            self._run_engine("drafts", Section.DRAFTS, engine_kwargs=drafts)
        if self._options.is_cpu:
            self._results.add("fp8", skipped("needs a GPU"))
            return
        fp8, sections = {"kv_cache_dtype": "fp8"}, (Section.GENERATE, Section.LOG_PROBS)
        self._run_engine("fp8", *sections, bounds="fp8", engine_kwargs=fp8)

    def _speed(self) -> None:
        """On a GPU of an engine with an 8B model's sizes, or one's own model; weights are made up."""
        options = self._options
        changes: dict[str, Any] = {}
        if not options.is_cpu:
            changes = {
                "model": str(options.model or make_config(options.output / "large_model")),
                "load_format": "dummy",
                "max_model_len": max(CONTEXTS_TOK) + LONG_TOK,
                "gpu_memory_utilization": 0.45,  # the cells' room; the rest is for others that start meanwhile
                "engine_kwargs": {"tensor_parallel_size": options.tensor_parallel_size, "compilation_config": GRAPHS},
            }
        self._run_engine("speed", Section.SPEED, **changes)

    def _several(self) -> None:
        for case in training.OF_TWO:
            if self._options.gpus < case.gpus:
                self._results.add(case.name, skipped("needs --gpus 2"))
            else:
                self._train(case)

    def _run_engine(self, name: str, *sections: Section, bounds: str = "", **changes: Any) -> dict[str, Facts]:
        """
        Args:
            bounds: of log-probs, if not those of the engine's dtype.
            changes: of the engine's settings.
        """
        options = self._options
        assert self.machine is not None
        settings = EngineSettings(
            model=str(self._model),
            attention=self.machine.attention,
            facts=str(options.output / name / "facts.jsonl"),
            sections=sections,
            **(ON_A_CPU if options.is_cpu else {}),
        )
        settings = replace(settings, **changes)
        facts, ended = engine.run_engine(settings, environment=self._environment(), timeout_s=options.timeout_s)
        for section in facts:
            facts[section]["plain_tokens_per_s"] = self._plain_tokens_per_s
        prefix = "" if name == "engine" else f"{name}: "
        told = (Section.START, *sections)
        engine.tell(self._results, facts, ended, *told, bounds=bounds or self._bounds, prefix=prefix)
        return facts

    def _environment(self) -> dict[str, str]:
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment = cpu_environment(os.environ, code_path=training.CODE_PATH) | offline
        if not self._options.is_cpu:
            del environment["VERL_PLATFORM"]
        return environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and tell. Returns the exit status."""
    options = _parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    exit_on_signals()
    results = Results()
    check = Check(options, results)
    began_s = time.perf_counter()
    try:
        check.run()
    finally:
        found = check.machine
        about = {
            "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "device": options.device,
            "gpus": [gpu.name for gpu in found.gpus] if found else [],
            "versions": found.versions if found else "",
            "seconds": round(time.perf_counter() - began_s, 1),
        }
        exit_code = results.finish(options.output, about=about)
    return exit_code


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine to check; theme 6 needs two or more")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: check what a CPU can")
    parser.add_argument("--only", type=int, choices=range(2, 7), metavar="N", help="beside theme 1 only theme N")
    parser.add_argument("--model", type=Path, help="folder of a model to check with, instead of one made here")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of the engine in theme 5")
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
