"""The first hour on GPUs: whether the recipe works here, and how fast. `python -m recipe.async_dapo_lab.gpu_check`

Nothing is downloaded: model and task are made on the spot. Each check is a line with its seconds: PASS, FAIL with the
remedy, or SKIP. Exit status 0 only without FAIL. About ten minutes on one GPU, as estimated: it has run on CPUs alone.
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

from rich.console import Console

from ...async_dapo.option_values import SPECULATIVE_CONFIGS, SUFFIX_PACKAGE, Drafts
from ..quickstart.activation import cpu_environment
from ..quickstart.supervision import RayFolder, exit_on_signals
from . import engine, machine, several_gpus, speed, training
from .assets import make_config, prepare
from .engine import EngineSettings, Facts, Section
from .verdicts import Results, skipped

CPU_EXECUTOR = {"distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor"}
OF_ENGINE = (Section.START, Section.GENERATE, Section.LOG_PROBS, Section.ABORT, Section.KEEP, Section.PREFIX_CACHE)
SLEEPS = (Section.SLEEP_1, Section.SLEEP_2)
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "dtype": "float32",
        "requests": 24,
        "compared": 8,
        "prompt_tok": 48,
        "response_tok": 96,
        "max_model_len": 1024,
        "max_num_seqs": 32,
        "gpu_memory_utilization": 0.1,
        "bucket_mb": 256,
        "ballast_bytes": 384 << 20,
        "batches": (1, 4, 16),
        "contexts_tok": (64, 256),
        "times": 8,
        "engine_kwargs": CPU_EXECUTOR,
    },
    "cuda": {
        "dtype": "bfloat16",
        "requests": 256,
        "compared": 32,
        "prompt_tok": 256,
        "response_tok": 256,
        "max_model_len": 2048,
        "max_num_seqs": 256,
        "gpu_memory_utilization": 0.4,
        "bucket_mb": 2048,
        "ballast_bytes": 16 << 30,  # bf16 weights of an 8B model, all of them
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    gpus: int
    device: str
    full: bool
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

    def __init__(self, options: Options, results: Results, sockets: Path) -> None:
        self._options, self._results, self._sockets = options, results, sockets
        self.machine: machine.Machine | None = None
        self._facts: dict[str, Facts] = {}
        self._ended = ""

    def run(self) -> None:
        options, results = self._options, self._results
        results.begin("1. machine")
        began_s = time.perf_counter()
        self.machine = machine.probe(options.device, output=options.output)
        results.note(f"looked at it for {time.perf_counter() - began_s:.1f} s")
        verdicts = machine.judgements(self.machine, gpus=options.gpus)
        for name, verdict in verdicts.items():
            results.add(name, verdict)
        if any(verdicts[name].is_failure for name in machine.NEEDED):
            results.begin("2. to 7.")
            results.add("all other checks", skipped("mend the machine first"))
            return
        results.note("makes a model and data, and starts engines: the next lines take minutes")
        self._assets = prepare(options.output, device=options.device)
        self._model = options.model or self._assets.model
        themes = {
            (2, 3): self._engine,
            (4,): self._training,
            (5,): self._cheaper_tokens,
            (6,): self._speed,
            (7,): self._several,
        }
        for numbers, check in themes.items():
            if options.only is None or options.only in numbers:
                check()

    def _engine(self) -> None:
        """Themes 2 and 3 share an engine; on a CPU theme 6 does, too."""
        results, is_cpu = self._results, self._options.is_cpu
        more = (Section.WEIGHTS, Section.SPEED) if is_cpu else (*SLEEPS, Section.WEIGHTS)
        self._facts, self._ended = self._run_engine(self._settings("engine", *OF_ENGINE, *more))
        bounds = engine.BOUNDS["float32" if is_cpu else "bfloat16"]
        results.begin("2. engine")
        sections = OF_ENGINE if is_cpu else (*OF_ENGINE, *SLEEPS)
        engine.tell(results, self._facts, self._ended, sections=sections, bounds=bounds)
        if is_cpu:
            for section in SLEEPS:
                results.add(section, skipped("needs a GPU"))
        results.begin("3. weights")
        engine.tell(results, self._facts, self._ended, sections=[Section.WEIGHTS], bounds=bounds)

    def _training(self) -> None:
        self._results.begin("4. training")
        for case in training.cases(self._options.device, full=self._options.full):
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
        self._results.add(case.name, verdict, seconds=time.perf_counter() - began_s, measured=training.figures(steps))

    def _cheaper_tokens(self) -> None:
        """Drafts and an FP8 cache, each in an engine of its own, beside the plain one."""
        results, is_cpu = self._results, self._options.is_cpu
        results.begin("5. drafts and FP8 cache")
        if find_spec("arctic_inference") is None:
            results.add(Section.DRAFTS, skipped(f"needs a package; run: pip install {SUFFIX_PACKAGE}"))
        else:
            drafts = {"speculative_config": SPECULATIVE_CONFIGS[Drafts.SUFFIX]}
            settings = replace(self._settings("drafts", Section.DRAFTS), engine_kwargs=drafts)
            self._beside_the_plain(settings, Section.DRAFTS, bounds="float32" if is_cpu else "bfloat16")
        if is_cpu:
            results.add("FP8 cache", skipped("needs a GPU"))
            return
        fp8 = self._settings("fp8", Section.GENERATE, Section.LOG_PROBS)
        fp8 = replace(fp8, engine_kwargs={"kv_cache_dtype": "fp8"})
        self._beside_the_plain(fp8, Section.GENERATE, Section.LOG_PROBS, bounds="fp8", prefix="FP8 cache: ")

    def _beside_the_plain(self, settings: EngineSettings, *sections: Section, bounds: str, prefix: str = "") -> None:
        facts, ended = self._run_engine(settings)
        plain = self._facts.get(Section.GENERATE)
        if plain is not None and sections[0] in facts:
            facts[sections[0]]["plain_tokens_per_s"] = plain["tokens"] / plain["generating_s"]
        engine.tell(self._results, facts, ended, sections=sections, bounds=engine.BOUNDS[bounds], prefix=prefix)

    def _speed(self) -> None:
        """On a GPU of an engine with an 8B model's sizes, or one's own model; weights are made up."""
        options, results = self._options, self._results
        results.begin("6. speed")
        began_s = time.perf_counter()
        reference, model, settings = speed.TINY, self._model, self._settings("speed", Section.SPEED)
        if not options.is_cpu:
            reference = speed.REFERENCE | {"tensor_parallel_size": options.tensor_parallel_size}
            model = options.model or make_config(options.output / "large_model")
            settings = replace(
                settings,
                model=str(model),
                load_format="dummy",
                max_model_len=max(speed.CONTEXTS_TOK) + speed.LONG_TOK,
                gpu_memory_utilization=0.8,
                batches=speed.BATCHES,
                contexts_tok=speed.CONTEXTS_TOK,
                engine_kwargs={"tensor_parallel_size": options.tensor_parallel_size},
            )
        is_measured = Section.SPEED in self._facts
        facts, ended = (self._facts, self._ended) if is_measured else self._run_engine(settings)
        verdict, measured = engine.no_result(ended), dict[str, Any]()
        if Section.SPEED in facts:
            assert self.machine is not None
            found = facts[Section.SPEED]
            reference = reference | {"model": str(model)} | speed.hardware(self.machine.gpus, found["prefills"], model)
            verdict, fitted = speed.judge_speed(found, record=options.output / "speed.jsonl", reference=reference)
            measured = found | fitted
        results.add("decode and prefill", verdict, seconds=time.perf_counter() - began_s, measured=measured)

    def _several(self) -> None:
        options, results = self._options, self._results
        backend = "gloo" if options.is_cpu else "nccl"
        sums = f"{backend} all-reduce"
        cases = (
            training.Case(name="tensor parallel 2", gpus=2, tensor_parallel_size=2),
            training.Case(name="two FSDP ranks", gpus=2),
            training.Case(name="one engine killed", gpus=2, kills_an_engine=True, steps=training.STEPS + 2),
        )
        results.begin("7. several GPUs")
        if options.gpus < several_gpus.RANKS:
            for name in (sums, *(case.name for case in cases)):
                results.add(name, skipped("needs --gpus 2"))
            return
        began_s = time.perf_counter()
        seconds, ended = several_gpus.all_reduce(
            backend, folder=options.output / "several", environment=self._environment()
        )
        verdict = several_gpus.judge_all_reduce(seconds, ended)
        results.add(sums, verdict, seconds=time.perf_counter() - began_s)
        for case in cases:
            self._train(case)

    def _settings(self, name: str, *sections: Section) -> EngineSettings:
        assert self.machine is not None
        return EngineSettings(
            model=str(self._model),
            device=self._options.device,
            attention=self.machine.attention,
            facts=str(self._options.output / name / "facts.jsonl"),
            sockets=str(self._sockets),
            sections=sections,
            **SIZES[self._options.device],
        )

    def _run_engine(self, settings: EngineSettings) -> tuple[dict[str, Facts], str]:
        return engine.run_engine(settings, environment=self._environment(), timeout_s=self._options.timeout_s)

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
    results = Results(console=Console())
    began_s = time.perf_counter()
    with RayFolder() as folder:  # sockets of engines lie in it: its path is short
        check = Check(options, results, folder.path)
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
            results.finish(options.output, about=about)
    return results.exit_code


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine to check; theme 7 needs two or more")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: check what a CPU can")
    parser.add_argument("--full", action="store_true", help="train with every strategy, and further stop rules")
    parser.add_argument("--only", type=int, choices=range(2, 8), metavar="N", help="beside theme 1 only theme N")
    parser.add_argument("--model", type=Path, help="folder of a model to check with, instead of one made here")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of the engine in theme 6")
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
