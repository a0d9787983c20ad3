"""The first minute on a GPU: an engine's life without Ray and verl's trainer, then engines with a full cache.

A process of its own runs the parts (`minute_process.py`), each with a time limit. A part that passes it ends the
process; another one goes on with the engines behind it. What a failure of a part would be is numbered in docs/gpu.md.
"""

import faulthandler
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...async_dapo.config.extensions import declared
from ..quickstart.supervision import RayFolder
from .supervised import run_supervised
from .verdicts import Verdict, failed, first_failure, passed, skipped
from .watch import LeastFree

MODULE = f"{__package__}.minute_process"
FACTS = "facts.json"
CPU_TIMES = 10  # that a CPU may take as long
PROCESS_S = 45.0  # for the process itself, beside its parts
SAME_NATS = 1e-5  # log-probs of the same weights; batches may differ
LEAST_CHANGE_NATS = 1e-4  # of weights that are 1 % larger
STAYS_ASLEEP_GB = 4.0  # CUDA contexts, graphs, and the weights that this process holds
# Requests that a full cache preempts in one step: of staggered ones few need a block at once. Engines on a CPU preempt
# one, or four with drafts; vLLM's scheduler alone 36 or more where blocks are freed late.
MOST_AT_ONCE = 8
_LATE = re.compile(r"^Timeout \(", re.MULTILINE)  # what `faulthandler` writes when it ends the process
_EAGER = "start with enforce_eager=True, then with VLLM_USE_V2_MODEL_RUNNER=0, to see which of the two it is"
_SYNCHRONOUS = "set ++actor_rollout_ref.rollout.engine_kwargs.vllm.async_scheduling=False"

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSettings:
    """What the process is told. Sizes are a GPU's unless others are given."""

    engines: list[str] = field(default_factory=list)  # of `ENGINES`, in order
    limits_s: dict[str, float] = field(default_factory=dict)  # of each part
    model: str  # folder, whose weights are one file
    drafting_model: str = ""  # one whose own head drafts
    folder: str  # of what it writes
    sockets: str = ""  # folder with a short path
    device: str = "cuda"
    dtype: str = "bfloat16"
    gpu_memory_utilization: float = 0.3
    kv_cache_bytes: int | None = None  # of each engine; None: what it finds free
    abort_within_s: float = 0.5
    pressure_blocks: int = 400
    pressure_tok: int = 300
    requests: int = 64
    graphs: dict[str, Any] = field(default_factory=dict)  # vLLM's compilation_config


ON_A_CPU: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "gpu_memory_utilization": 0.1,
    "abort_within_s": 5.0,
    "pressure_blocks": 200,
    "pressure_tok": 60,
}


class Notes:
    """The file of facts: those of each part that has ended, and whether the newest engine has started."""

    def __init__(self, settings: MinuteSettings) -> None:
        self._file, self._limits_s = Path(settings.folder, FACTS), settings.limits_s
        self._told: Facts = {"parts": {}, "has_started": False}

    @contextmanager
    def part(self, key: str) -> Iterator[Facts]:
        """A dict for its facts, which count once the part has ended within its limit."""
        facts: Facts = {}
        began_s = time.perf_counter()
        faulthandler.dump_traceback_later(self._limits_s[key], exit=True)
        try:
            yield facts
        finally:
            faulthandler.cancel_dump_traceback_later()
        self._told["parts"][key] = facts | {"seconds": time.perf_counter() - began_s}
        self._write()

    def engine(self, *, has_started: bool) -> None:
        self._told["has_started"] = has_started
        self._write()

    def _write(self) -> None:
        self._file.write_text(json.dumps(self._told) + "\n")


def _start(facts: Facts) -> Verdict:
    runner = "second" if facts["second_runner"] else "first"
    scheduling = "asynchronous" if facts["async_scheduling"] else "synchronous"
    return passed(f"{runner} model runner, {scheduling} scheduling, {facts['kv_blocks']:,} blocks")


def _difference(one: list[Any], other: list[Any]) -> float:
    """Between log-probs of the same tokens [nats]; infinite where tokens differ, where there is none, or where one's
    log-prob is missing or no number.
    """
    if [ids for ids, _ in one] != [ids for ids, _ in other]:
        return math.inf
    if any(len(ids) != len(log_probs) for ids, log_probs in (*one, *other)):
        return math.inf
    off = [abs(a - b) for (_, x), (_, y) in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    return max(off) if off and all(map(math.isfinite, off)) else math.inf


def _asleep(facts: Facts) -> Verdict:
    off = _difference(facts["before"], facts["after"])
    stays_gb = facts.get("total_gb", 0.0) - facts.get("free_asleep_gb", 0.0)  # a CPU's engines free nothing
    same = (
        off <= SAME_NATS,
        f"after sleep, with the same weights, answers differ by {off:.2g} nats",
        f"an engine keeps something that its sleep has thrown away; {_EAGER}; do not train with free_cache_engine=True",
    )
    freed = (
        stays_gb <= STAYS_ASLEEP_GB,
        f"{stays_gb:.1f} GB stay while it sleeps",
        "look for another process: nvidia-smi",
    )
    memory = f"; {stays_gb:.1f} GB stay, what was free was overwritten with NaN" if stays_gb else ""
    return first_failure(same, freed, else_found=f"the same tokens, log-probs within {off:.1g}{memory}")


def _new_weights(facts: Facts) -> Verdict:
    moved, back = _difference(facts["before"], facts["scaled"]), _difference(facts["before"], facts["restored"])
    return first_failure(
        (moved >= LEAST_CHANGE_NATS, "weights that are 1 % larger change nothing: graphs read old ones", _EAGER),
        (back <= SAME_NATS, f"weights that came back leave {back:.2g} nats", _EAGER),
        else_found="1 % larger weights change the answers, the old ones bring them back",
    )


def _abort(facts: Facts) -> Verdict:
    seconds, within_s, aborted, requests = (facts[key] for key in ("abort_s", "within_s", "aborted", "requests"))
    return first_failure(
        (
            aborted == requests,
            f"only {aborted} of {requests} were still running: this has shown little",
            "run it again",
        ),
        (facts["log_probs_whole"], "tokens came without their log-probs", "do not train, and report it"),
        (seconds <= within_s, f"took {seconds:.2f} s, at most {within_s:g}", "read minute.log"),
        else_found=f"{1e3 * seconds:.0f} ms, {facts['aborted_tok']:,} tokens, each with its log-prob",
    )


def _end(facts: Facts) -> Verdict:
    return passed("its processes have ended")


def _fp8(facts: Facts) -> Verdict:
    return first_failure(
        *((not verdict.is_failure, verdict.found, verdict.remedy) for verdict in (_asleep(facts), _new_weights(facts))),
        else_found="the same answers after sleep, and after two updates",
    )


def _pressed(facts: Facts) -> str:
    return (
        f"{facts['preemptions']} preemptions in {facts['steps']:,} steps, at most {facts['most_in_a_step']} in one; "
        f"{facts['step_ms']:.1f} ms a step"
    )


def _full(facts: Facts) -> Verdict:
    wanted_tok, tok = facts["wanted_tok"], facts["generated_tok"]
    return first_failure(
        (tok == wanted_tok, f"{tok:,} tokens came, {wanted_tok:,} were asked for", "do not train, and report it"),
        (facts["preemptions"] > 0, "the cache was never full: this has shown nothing", "report it"),
        (facts["most_in_a_step"] <= MOST_AT_ONCE, _pressed(facts), _SYNCHRONOUS),
        else_found=_pressed(facts),
    )


def _told(facts: Facts) -> Verdict:
    return passed(f"{_pressed(facts)}; engines of this recipe are never started so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A check of the first minute, that the process has measured.

    Args:
        limit_s: on a GPU, the start of its engine included where that is its own.
        finding: of docs/gpu.md, that a failure would be.
        on_gpus_only: why, where a CPU has nothing to check.
        extension: that serves it; empty: none.
        may_lack: an engine that does not start on a CPU is none of its faults: the CPU build may not have it.
    """

    name: str
    limit_s: float
    finding: int
    judge: Callable[[Facts], Verdict]
    on_gpus_only: str = ""
    extension: str = ""
    may_lack: bool = False

    def why_left_out(self, *, is_cpu: bool) -> str:
        """Empty where it can be checked."""
        if self.extension and self.extension not in declared():
            return f"needs extensions/{self.extension}, which is not in this copy"
        return self.on_gpus_only if is_cpu else ""


PARTS = {
    "start": Part(name="engine starts", limit_s=75, finding=12, judge=_start),
    "asleep": Part(name="same after sleep", limit_s=25, finding=9, judge=_asleep),
    "weights": Part(name="new weights are seen", limit_s=25, finding=9, judge=_new_weights),
    "abort": Part(name="abort of 64 requests", limit_s=15, finding=15, judge=_abort),
    "end": Part(name="engine ends", limit_s=20, finding=15, judge=_end),
    "full": Part(name="full cache", limit_s=60, finding=1, judge=_full),
    "host_kv": Part(name="full cache, host memory", limit_s=60, finding=1, judge=_full, extension="host_kv"),
    "host_kv_async": Part(
        name="the same, asynchronous",
        limit_s=60,
        finding=1,
        judge=_told,
        on_gpus_only="a CPU schedules synchronously",
        extension="host_kv",
    ),
    "mtp": Part(
        name="full cache, own head drafts", limit_s=75, finding=3, judge=_full, extension="drafts", may_lack=True
    ),
    "fp8": Part(name="FP8 cache, two updates", limit_s=75, finding=10, judge=_fp8, may_lack=True),
}
LIFE = ("start", "asleep", "weights", "abort", "end")
ENGINES = {"life": LIFE, **{key: (key,) for key in PARTS if key not in LIFE}}  # parts of each engine, in order


def measure(
    engines: Sequence[str], settings: MinuteSettings, *, environment: Mapping[str, str], free: LeastFree
) -> Iterator[tuple[str, Verdict, Facts]]:
    """Each part's key, verdict and facts. A process that ends too early leaves the engines behind it to another one."""
    left = list(engines)
    is_cpu = settings.device == "cpu"
    for key in engines:
        if why := PARTS[ENGINES[key][0]].why_left_out(is_cpu=is_cpu):
            left.remove(key)
            yield key, skipped(why), {}
    while left:
        limits_s = {part: PARTS[part].limit_s * (CPU_TIMES if is_cpu else 1) for key in left for part in ENGINES[key]}
        told, ended = _run(left, limits_s, settings, environment, free)
        while left:
            parts = ENGINES[left.pop(0)]
            yield from _judged(parts, told, ended, limits_s, may_lack=is_cpu)
            if ended and not all(part in told["parts"] for part in parts):
                break  # the process ended here


def _judged(
    parts: Sequence[str], told: Facts, ended: str, limits_s: Mapping[str, float], *, may_lack: bool
) -> Iterator[tuple[str, Verdict, Facts]]:
    found, is_over = told["parts"], False
    for key in parts:
        part = PARTS[key]
        if key in found:
            verdict = part.judge(found[key])
            if verdict.is_failure:
                verdict = failed(f"{verdict.found} ({_named(part)})", verdict.remedy)
        elif is_over:
            verdict = skipped("the part before it did not end")
        elif may_lack and part.may_lack and not told.get("has_started"):
            verdict = skipped(f"no such engine in vLLM's CPU build here: {ended}")
        else:
            is_over = True
            words = f"not done after {limits_s[key]:.0f} s" if told["is_late"] else ended or "no result"
            verdict = failed(f"{words} ({_named(part)})", "read minute.log: it names the call that failed, or waits")
        yield key, verdict, found.get(key, {})


def _named(part: Part) -> str:
    return f"finding {part.finding} of docs/gpu.md"


def _run(
    engines: Sequence[str],
    limits_s: Mapping[str, float],
    settings: MinuteSettings,
    environment: Mapping[str, str],
    free: LeastFree,
) -> tuple[Facts, str]:
    """What the process has told, and how it ended if it did not end well."""
    folder = Path(settings.folder) / engines[0]
    folder.mkdir(parents=True, exist_ok=True)
    told, facts, log = folder / "settings.json", folder / FACTS, folder / "minute.log"
    facts.unlink(missing_ok=True)
    limit_s = sum(limits_s.values()) + PROCESS_S * (CPU_TIMES if settings.device == "cpu" else 1)
    with RayFolder() as sockets:
        own: Facts = {"engines": list(engines), "limits_s": dict(limits_s), "folder": str(folder)}
        own = asdict(settings) | own | {"sockets": str(sockets.path)}
        told.write_text(json.dumps(own, indent=2) + "\n")
        ended = run_supervised(
            [sys.executable, "-m", MODULE, str(told)],
            environment=environment,
            log=log,
            timeout_s=limit_s,
            on_watch=free.look,
        )
    found = json.loads(facts.read_text()) if facts.exists() else {"parts": {}}
    is_late = bool(ended) and _LATE.search(log.read_text(errors="replace")) is not None
    return found | {"is_late": is_late}, ended
