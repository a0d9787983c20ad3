"""The first hour on GPUs: whether the recipe works here, and how fast. `python -m recipe.async_dapo_lab.gpu_check`

Nothing is downloaded: model and task are made on the spot. Each check is a line with its seconds, PASS, FAIL or SKIP,
and what to do. Exit status 0 only without FAIL. About ten minutes on one GPU, as estimated: it has run on CPUs alone.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ...async_dapo.cpu.activation import cpu_environment
from ...async_dapo.hardware import PRESETS as ACCELERATORS
from ...async_dapo.hardware import find_accelerator, load_model
from ..quickstart.supervision import RayFolder, exit_on_signals
from . import engine, machine, planned, several_gpus, speed, training
from .assets import Subject, make_config, prepare
from .engine_settings import EngineSettings, Section
from .verdicts import Results, skipped

CPU_EXECUTOR = {"distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor"}
ENGINE_SECTIONS = (Section.GENERATE, Section.LOG_PROBS, Section.ABORT, Section.KEEP, Section.PREFIX_CACHE)
SLEEP_SECTIONS = (Section.SLEEP_1, Section.SLEEP_2)
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"requests": 24, "compared": 8, "prompt_tok": 48, "response_tok": 96, "max_model_len": 1024},
    "cuda": {"requests": 256, "compared": 32, "prompt_tok": 256, "response_tok": 256, "max_model_len": 2048},
}
BALLAST_BYTES = {"cpu": 256 << 20, "cuda": 16 << 30}  # the second: bf16 weights of an 8B model
BUCKET_MB = {"cpu": 64, "cuda": 2048}
CPU_BATCHES, CPU_CONTEXTS_TOK = (1, 4, 16), (64, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    gpus: int
    device: str
    full: bool
    model: Path | None
    output: Path
    timeout_s: float


class Check:
    """One run of the command: themes in order, each in processes of its own."""

    def __init__(self, options: Options, results: Results, sockets: Path) -> None:
        self._options, self._results, self._sockets = options, results, sockets
        self.machine: machine.Machine | None = None

    def run(self) -> None:
        options, results = self._options, self._results
        with results.theme("1. machine"):
            began_s = time.perf_counter()
            self.machine = machine.probe(options.device, output=options.output)
            results.note(f"looked at in {time.perf_counter() - began_s:.1f} s")
            judges = machine.judgements(self.machine, gpus=options.gpus)
            verdicts = {name: results.timed(name, judge) for name, judge in judges.items()}
        if any(verdicts[name].is_failure for name in machine.NEEDED):
            with results.theme("2. to 7."):
                results.add("all other checks", skipped("mend the machine first"), seconds=0.0)
            return
        subject = prepare(options.output, device=options.device, model=options.model)
        self._engine(subject)
        with results.theme("4. training"):
            for case in training.cases(options.device, full=options.full):
                self._train(case, subject)
        self._fp8(subject)
        self._speed(subject)
        with results.theme("7. several GPUs"):
            self._several(subject)

    def _engine(self, subject: Subject) -> None:
        """Themes 2 and 3 share an engine."""
        options, results = self._options, self._results
        sleeps = () if options.device == "cpu" else SLEEP_SECTIONS
        speeds = (Section.SPEED,) if options.device == "cpu" else ()
        sections = (*ENGINE_SECTIONS, *sleeps, Section.WEIGHTS, *speeds)
        settings = self._settings(subject.model, "engine", sections)
        self._facts, ended = self._run_engine(settings)
        bounds = engine.BOUNDS[settings.dtype]
        with results.theme("2. engine"):
            engine.tell(results, self._facts, ended, sections=(*ENGINE_SECTIONS, *sleeps), bounds=bounds)
            if not sleeps:
                for section in SLEEP_SECTIONS:
                    results.add(engine.NAMES[section], skipped("needs a GPU"), seconds=0.0)
        with results.theme("3. weights"):
            engine.tell(results, self._facts, ended, sections=(Section.WEIGHTS,), bounds=bounds, tells_start=False)

    def _train(self, case: training.Case, subject: Subject) -> None:
        options = self._options
        began_s = time.perf_counter()
        folder = options.output / "training" / case.name.replace(", ", "-").replace(" ", "_")
        steps, ended = training.train(case, subject, device=options.device, folder=folder, timeout_s=options.timeout_s)
        verdict = training.judge_training(steps, ended, case=case, bounds=training.BOUNDS[options.device])
        self._results.add(case.name, verdict, seconds=time.perf_counter() - began_s, measured=training.figures(steps))

    def _fp8(self, subject: Subject) -> None:
        results = self._results
        with results.theme("5. FP8 cache"):
            if self._options.device == "cpu":
                results.add("FP8 cache", skipped("needs a GPU"), seconds=0.0)
                return
            sections = (Section.GENERATE, Section.LOG_PROBS)
            settings = self._settings(subject.model, "fp8", sections)
            settings = replace(settings, engine_kwargs={"kv_cache_dtype": "fp8"})
            facts, ended = self._run_engine(settings)
            engine.tell(results, facts, ended, sections=sections, bounds=engine.BOUNDS["fp8"], prefix="FP8 cache: ")

    def _speed(self, subject: Subject) -> None:
        """On a GPU of an engine with an 8B model's sizes, or one's own model; weights are made up."""
        options, results = self._options, self._results
        with results.theme("6. speed"):
            began_s = time.perf_counter()
            reference, model = dict(planned.TINY), subject.model
            facts, ended = self._facts, ""
            measured: dict[str, Any] = {}
            if options.device != "cpu":
                reference = dict(planned.REFERENCE)
                model = options.model or make_config(options.output / "large_model")
                settings = replace(
                    self._settings(model, "speed", (Section.SPEED,)),
                    load_format="dummy",
                    max_model_len=max(speed.CONTEXTS_TOK) + speed.LONG_TOK,
                    gpu_memory_utilization=0.8,
                    batches=speed.BATCHES,
                    contexts_tok=speed.CONTEXTS_TOK,
                )
                facts, ended = self._run_engine(settings)
            reference["model"] = str(model)
            if Section.SPEED not in facts:
                verdict = engine.no_result(ended)
            else:
                if options.device != "cpu":
                    reference |= self._hardware(facts[Section.SPEED], model)
                record = options.output / "speed.jsonl"
                verdict, fitted = planned.judge_speed(facts[Section.SPEED], record=record, reference=reference)
                measured = {**facts[Section.SPEED], **fitted}
            results.add("decode and prefill", verdict, seconds=time.perf_counter() - began_s, measured=measured)

    def _hardware(self, facts: engine.Facts, model: Path) -> dict[str, Any]:
        """Inputs of the planner that the accelerator decides."""
        assert self.machine is not None
        name = self.machine.gpus[0].name.lower()
        preset = next((one for one in ACCELERATORS if one in name), None)
        if preset is None:
            return {"memory_gb": self.machine.gpus[0].memory_bytes / 1e9}
        share = planned.prefill_flop_share(
            facts["prefills"], model=load_model(str(model)), accelerator=find_accelerator(preset)
        )
        return {"accelerator": preset} | ({} if share is None else {"prefill_flop_share": share})

    def _several(self, subject: Subject) -> None:
        options, results = self._options, self._results
        backend = "gloo" if options.device == "cpu" else "NCCL"
        names = (f"{backend} all-reduce", "tensor parallel 2", "two FSDP ranks", "one engine killed")
        if options.gpus < several_gpus.RANKS:
            for name in names:
                results.add(name, skipped("needs --gpus 2"), seconds=0.0)
            return
        began_s = time.perf_counter()
        folder = options.output / "several"
        said, ended = several_gpus.all_reduce(options.device, folder=folder, environment=self._environment())
        verdict = several_gpus.judge_all_reduce(said, ended, backend=backend)
        results.add(names[0], verdict, seconds=time.perf_counter() - began_s)
        self._train(training.Case(name=names[1], gpus=2, tensor_parallel_size=2), subject)
        self._train(training.Case(name=names[2], gpus=2), subject)
        self._train(training.Case(name=names[3], gpus=2, kills_an_engine=True, steps=training.STEPS + 2), subject)

    def _settings(self, model: Path, name: str, sections: Sequence[Section]) -> EngineSettings:
        device = self._options.device
        is_cpu = device == "cpu"
        return EngineSettings(
            model=str(model),
            device=device,
            dtype="float32" if is_cpu else "bfloat16",
            attention=self._attention(),
            facts=str(self._options.output / name / "facts.jsonl"),
            sockets=str(self._sockets),
            sections=tuple(map(str, sections)),
            max_num_seqs=32 if is_cpu else 256,
            bucket_mb=BUCKET_MB[device],
            ballast_bytes=BALLAST_BYTES[device],
            batches=CPU_BATCHES if is_cpu else (),
            contexts_tok=CPU_CONTEXTS_TOK if is_cpu else (),
            gpu_memory_utilization=0.1 if is_cpu else 0.4,
            engine_kwargs=CPU_EXECUTOR if is_cpu else {},
            **SIZES[device],
        )

    def _attention(self) -> str:
        """transformers' name of the trainer's attention."""
        assert self.machine is not None
        has_package = self.machine.flash_attention.startswith("flash-attn") and not self.machine.flash_attention_error
        return "flash_attention_2" if has_package else "sdpa"

    def _run_engine(self, settings: EngineSettings) -> tuple[dict[str, engine.Facts], str]:
        folder = Path(settings.facts).parent
        return engine.run_engine(
            settings, environment=self._environment(), folder=folder, timeout_s=self._options.timeout_s
        )

    def _environment(self) -> dict[str, str]:
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment = cpu_environment(os.environ, code_path=training.CODE_PATH) | offline
        if self._options.device != "cpu":
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
            seconds = time.perf_counter() - began_s
            about = {
                "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
                "device": options.device,
                "gpus": [gpu.name for gpu in check.machine.gpus] if check.machine else [],
                "versions": check.machine.versions if check.machine else "",
                "seconds": round(seconds, 1),
            }
            file = results.write(options.output, about=about)
            results.show_table(file, seconds=seconds)
    return results.exit_code


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus", type=int, default=1, help="GPUs of this machine to check; two or more: theme 7 as well"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: what a CPU can check")
    parser.add_argument("--full", action="store_true", help="train with every strategy, and on GPUs every stop rule")
    parser.add_argument("--model", type=Path, help="folder of a model to check with, instead of one made here")
    now = time.strftime("%Y%m%d-%H%M%S")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs", "gpu_check", f"{now}-{os.getpid()}"), metavar="DIR"
    )
    parser.add_argument("--timeout-s", type=float, default=900.0, help="end a process that takes longer")
    parsed = parser.parse_args(arguments)
    if parsed.gpus < 1:
        parser.error(f"--gpus={parsed.gpus}: must be at least 1")
    if parsed.model is not None and not (parsed.model / "config.json").is_file():
        parser.error(f"--model={parsed.model}: has no config.json; give a model's folder")
    parsed.output = parsed.output.absolute()
    parsed.model = parsed.model and parsed.model.absolute()
    return Options(**vars(parsed))


if __name__ == "__main__":
    sys.exit(main())
