"""The first minute on a GPU: an engine's life without Ray and verl's trainer, judged stage by stage, then the pressure
of a full cache. Each check names what it would find first.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .supervised import run_supervised
from .verdicts import Verdict, failed, first_failure, passed, skipped

MODULE = f"{__package__}.minute_process"
LIMIT_S = {"life": 90.0, "pressure": 120.0}  # of a GPU; a CPU may take ten times as long
CPU_TIMES = 10
SAME_NATS = 1e-5  # log-probs of the same weights; batches may differ
LEAST_CHANGE_NATS = 1e-4  # of weights that are 1 % larger
ABORT_S = 0.5
STAYS_ASLEEP_GB = 4.0  # CUDA contexts, graphs, and the weights that this process holds
MOST_AT_ONCE = 8  # requests that a full cache preempts in one step
_EAGER = "start with enforce_eager=True, then with VLLM_USE_V2_MODEL_RUNNER=0, to see which of the two it is"

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSettings:
    """What the process is told. Sizes are a GPU's unless others are given."""

    stage: str  # life, pressure
    model: str  # folder, whose weights are one file
    folder: str  # of what it writes, and of its socket
    device: str = "cuda"
    dtype: str = "bfloat16"
    gpu_memory_utilization: float = 0.3
    abort_after_s: float = 0.5
    pressure_blocks: int = 400
    pressure_tok: int = 300
    graphs: dict[str, Any] = field(default_factory=dict)  # vLLM's compilation_config


ON_A_CPU: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "gpu_memory_utilization": 0.1,
    "abort_after_s": 2.0,
    "pressure_blocks": 300,
    "pressure_tok": 100,
}


def run_stage(settings: MinuteSettings, *, environment: Mapping[str, str]) -> tuple[Facts, str]:
    """What it measured, and how its process ended if it did not end well."""
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    told, facts = folder / f"{settings.stage}.json", folder / "facts.json"
    told.write_text(json.dumps(asdict(settings), indent=2) + "\n")
    facts.unlink(missing_ok=True)
    limit_s = LIMIT_S[settings.stage] * (CPU_TIMES if settings.device == "cpu" else 1)
    command = [sys.executable, "-m", MODULE, str(told)]
    ended = run_supervised(command, environment=environment, log=folder / f"{settings.stage}.log", timeout_s=limit_s)
    return json.loads(facts.read_text()) if facts.exists() else {}, ended


def judge_life(facts: Facts, ended: str, *, device: str) -> Iterator[tuple[str, Verdict]]:
    """Each stage by name, in order; the first that is missing has failed, and those after it are skipped."""
    on_gpu = device == "cuda"
    stages = {
        "engine starts": ("start_s", _start),
        "memory asleep": ("free_asleep_gb", _memory),
        "same after sleep": ("after", _same),
        "new weights are seen": ("restored", _new_weights),
        "abort of 64 requests": ("abort_s", _abort),
    }
    missing = False
    for name, (needed, judge) in stages.items():
        if needed == "free_asleep_gb" and not on_gpu:
            yield name, skipped("needs a GPU")
        elif needed in facts:
            yield name, judge(facts)
        elif missing:
            yield name, skipped("the stage before it did not end")
        else:
            missing = True
            yield name, failed(ended or "no result", "read life.log: its last lines name the call that failed")


def _start(facts: Facts) -> Verdict:
    runner = "second" if facts["second_runner"] else "first"
    scheduling = "asynchronous" if facts["async_scheduling"] else "synchronous"
    return passed(
        f"{facts['start_s']:.0f} s; {runner} model runner, {scheduling} scheduling, {facts['kv_blocks']:,} blocks"
    )


def _memory(facts: Facts) -> Verdict:
    stays_gb = facts["total_gb"] - facts["free_asleep_gb"]
    needed = (
        stays_gb <= STAYS_ASLEEP_GB,
        f"{stays_gb:.1f} GB stay while it sleeps",
        "look for another process: nvidia-smi",
    )
    return first_failure(needed, else_found=f"{stays_gb:.1f} GB stay; free memory overwritten with NaN")


def _difference(one: list[Any], other: list[Any]) -> float:
    """Between log-probs of the same tokens [nats]; infinite where tokens differ, or one is no number."""
    if [ids for ids, _ in one] != [ids for ids, _ in other]:
        return math.inf
    off = [abs(a - b) for (_, x), (_, y) in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    return max(off) if all(map(math.isfinite, off)) else math.inf


def _same(facts: Facts) -> Verdict:
    off = _difference(facts["before"], facts["after"])
    needed = (
        off <= SAME_NATS,
        f"after sleep, with the same weights, answers differ by {off:.2g} nats",
        f"an engine keeps something that its sleep has thrown away; {_EAGER}; do not train with free_cache_engine=True",
    )
    return first_failure(needed, else_found=f"the same tokens, log-probs within {off:.1g}")


def _new_weights(facts: Facts) -> Verdict:
    moved, back = _difference(facts["before"], facts["scaled"]), _difference(facts["before"], facts["restored"])
    return first_failure(
        (moved >= LEAST_CHANGE_NATS, "weights that are 1 % larger change nothing: graphs read old ones", _EAGER),
        (back <= SAME_NATS, f"weights that came back leave {back:.2g} nats", _EAGER),
        else_found="1 % larger weights change the answers, the old ones bring them back",
    )


def _abort(facts: Facts) -> Verdict:
    return first_failure(
        (facts["log_probs_whole"], "tokens came without their log-probs", "do not train, and report it"),
        (facts["abort_s"] <= ABORT_S, f"took {facts['abort_s']:.2f} s, at most {ABORT_S}", "read life.log"),
        else_found=f"{1e3 * facts['abort_s']:.0f} ms, {facts['aborted_tok']:,} tokens, each with its log-prob",
    )


def judge_pressure(facts: Facts, ended: str) -> Iterator[tuple[str, Verdict]]:
    """A full cache, plain and with KV in host memory as the recipe starts it. Asynchronous scheduling with the latter,
    which the recipe never starts, is only told.
    """
    for key, name in (("plain", "full cache"), ("host_kv", "full cache, host memory")):
        if key not in facts:
            yield name, failed(ended or "no result", "read pressure.log")
            continue
        found = facts[key]
        words = (
            f"{found['preemptions']} preemptions, at most {found['most_in_a_step']} in a step, "
            f"{found['tokens_per_s']:,.0f} tok/s"
        )
        one = (
            found["most_in_a_step"] <= MOST_AT_ONCE,
            words,
            "a full cache preempts most requests at once: keep rollout_pool_size below what fills it",
        )
        yield name, first_failure(one, else_found=words)
    if (found := facts.get("host_kv_async")) is not None:
        yield (
            "the same, asynchronous",
            passed(f"{found['preemptions']} preemptions, {found['most_in_a_step']} in one step"),
        )
