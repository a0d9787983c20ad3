"""Judges an engine by what its process measured: requests, log-probs, stops, sleep, weights."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .engine_settings import EngineSettings, Section
from .supervised import run_supervised
from .verdicts import Results, Verdict, failed, passed, skipped

MODULE = f"{__package__}.engine_process"
GB = 1e9
ABORT_LIMIT_S = 5.0  # a stop is some engine steps; longer, and it hangs on something
PAUSE_LIMIT_S = 5.0
LEAK_LIMIT_BYTES = 0.5 * GB  # over a sleep and a wake-up
LEAST_SPREAD = 3.0  # between the old weights' difference and the new ones', after a transfer

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProbBounds:
    """Most that the engine's and the trainer's log-probs of a sampled token may differ by [nats]."""

    mean: float
    most: float


# fp32 computes the same up to rounding; bf16 has 8 bits, which a head of many layers turns into about 0.01 nats.
BOUNDS = {
    "float32": LogProbBounds(mean=1e-5, most=1e-3),
    "bfloat16": LogProbBounds(mean=0.03, most=1.0),
    "fp8": LogProbBounds(mean=0.1, most=3.0),
}


def judge_start(facts: Facts) -> Verdict:
    async_scheduling, runner = (facts[name] for name in ("async_scheduling", "second_runner"))
    if facts["kv_room_tok"] < 1:
        return failed("the engine has no KV cache", "free GPU memory, or raise gpu_memory_utilization")
    return passed(
        f"KV cache of {facts['kv_room_tok']:,} tokens, asynchronous scheduling {'on' if async_scheduling else 'off'}, "
        f"{'second' if runner else 'first'} model runner"
    )


def judge_generate(facts: Facts) -> Verdict:
    speed = facts["tokens"] / facts["generating_s"]
    if facts["complete"] < facts["requests"]:
        missing = facts["requests"] - facts["complete"]
        return failed(
            f"{missing} of {facts['requests']} requests lack tokens", "a fault of this vLLM; its log says more"
        )
    return passed(f"{facts['requests']} requests, {facts['tokens']} tokens, {speed:,.0f} tokens/s")


def judge_log_probs(facts: Facts, *, bounds: LogProbBounds) -> Verdict:
    said = (
        f"mean {facts['mean_diff']:.2g} (limit {bounds.mean:g}), most {facts['max_diff']:.2g} (limit {bounds.most:g}) "
        f"nats over {facts['compared_tok']} tokens"
    )
    if facts["mean_diff"] > bounds.mean or facts["max_diff"] > bounds.most:
        return failed(
            said,
            "engine and trainer compute different probabilities: compare their dtype, attention and RoPE; try "
            "actor_rollout_ref.rollout.enforce_eager=True and VLLM_USE_V2_MODEL_RUNNER=0 to find the part",
        )
    return passed(said)


def judge_abort(facts: Facts) -> Verdict:
    if facts["aborted_reason"] != "abort" or not 0 < facts["aborted_tok"] < facts["wanted_tok"]:
        return failed(
            f"the request ended by `{facts['aborted_reason']}` with {facts['aborted_tok']} tokens", _OTHER_VLLM
        )
    if facts["kept_log_probs"] != facts["aborted_tok"] or facts["other_tok"] != facts["wanted_tok"]:
        return failed("tokens without log-probs, or another request was ended as well", _OTHER_VLLM)
    if facts["abort_s"] > ABORT_LIMIT_S:
        return failed(f"took {facts['abort_s']:.1f} s", f"limit {ABORT_LIMIT_S:g} s; see what else the GPU does")
    return passed(f"{1e3 * facts['abort_s']:.0f} ms; its {facts['aborted_tok']} tokens are kept")


_OTHER_VLLM = "the versions that were tried are in requirements/; install one of them"


def judge_keep(facts: Facts, *, bounds: LogProbBounds) -> Verdict:
    if facts["meanwhile_tok"]:
        return failed(f"{facts['meanwhile_tok']} tokens came during the pause", _NO_STALE_KV)
    if facts["complete"] < facts["requests"] or facts["of_two_versions"] < facts["requests"]:
        return failed(
            f"of {facts['requests']} requests {facts['complete']} ended, {facts['of_two_versions']} with tokens of "
            "both versions",
            _NO_STALE_KV,
        )
    if facts["pause_s"] > PAUSE_LIMIT_S:
        return failed(f"the pause took {facts['pause_s']:.1f} s", f"limit {PAUSE_LIMIT_S:g} s")
    if (exact := judge_log_probs(facts, bounds=bounds)).is_failure:
        return exact
    return passed(f"pause {1e3 * facts['pause_s']:.0f} ms, resume {1e3 * facts['resume_s']:.0f} ms")


_NO_STALE_KV = "do not use async_dapo.rollout_strategy=partial_stale_kv on this vLLM"


def judge_prefix_cache(facts: Facts) -> Verdict:
    if not facts["same_version_tok"]:
        return failed("a prompt is not found again", "set actor_rollout_ref.rollout.enable_prefix_caching=True")
    if facts["next_version_tok"]:
        return failed(
            f"{facts['next_version_tok']} tokens of older weights were found", "cache_salt does not act: do not train"
        )
    if not facts["was_reset"] or facts["after_reset_tok"]:
        return failed("the cache cannot be reset", _OTHER_VLLM)
    return passed(f"{facts['same_version_tok']} tokens found, 0 under the next version; reset {facts['reset_s']:.2f} s")


def judge_sleep(facts: Facts, *, bounds: LogProbBounds) -> Verdict:
    said = (
        f"sleep {facts['sleep_s']:.1f} s, wake-up {facts['wake_s']:.1f} s, {facts['freed_bytes'] / GB:.1f} GB freed, "
        f"{facts['leaked_bytes'] / GB:+.2f} GB after it"
    )
    if facts["freed_bytes"] <= 0:
        return failed(said, "the trainer would find no memory: set actor_rollout_ref.rollout.free_cache_engine=False")
    if facts["leaked_bytes"] > LEAK_LIMIT_BYTES:
        return failed(said, f"leaks over {LEAK_LIMIT_BYTES / GB:g} GB each step; a run would end for want of memory")
    if (exact := judge_log_probs(facts, bounds=bounds)).is_failure:
        return failed(f"other probabilities after it: {exact.found}", exact.remedy)
    return passed(said)


def judge_weights(facts: Facts, *, bounds: LogProbBounds) -> Verdict:
    speed = facts["bytes"] / facts["send_s"] / GB
    said = (
        f"{facts['bytes'] / GB:.2f} GB in {facts['tensors']} tensors by {facts['way']}: {facts['send_s']:.2f} s, "
        f"{speed:.2f} GB/s; verl's own adapter {facts['verls_s']:.2f} s"
    )
    if (exact := judge_log_probs(facts, bounds=bounds)).is_failure:
        return failed(f"the engine has other weights than were sent: {exact.found}", exact.remedy)
    if facts["old_mean_diff"] < LEAST_SPREAD * facts["mean_diff"]:
        return failed(f"the engine may have its old weights: they differ by {facts['old_mean_diff']:.2g} nats", said)
    if "expected weights" not in facts["refusal"]:
        return failed("weights of another version were taken", "stamps do not act: do not train with this build")
    return passed(said)


JUDGES: dict[Section, Callable[..., Verdict]] = {
    Section.START: judge_start,
    Section.GENERATE: judge_generate,
    Section.LOG_PROBS: judge_log_probs,
    Section.ABORT: judge_abort,
    Section.KEEP: judge_keep,
    Section.PREFIX_CACHE: judge_prefix_cache,
    Section.SLEEP_1: judge_sleep,
    Section.SLEEP_2: judge_sleep,
    Section.WEIGHTS: judge_weights,
}
_WITH_BOUNDS = (Section.LOG_PROBS, Section.KEEP, Section.SLEEP_1, Section.SLEEP_2, Section.WEIGHTS)
NAMES = {
    Section.START: "start",
    Section.GENERATE: "generate",
    Section.LOG_PROBS: "log-probs of engine, trainer",
    Section.ABORT: "abort",
    Section.KEEP: "pause and resume",
    Section.PREFIX_CACHE: "prefix cache",
    Section.SLEEP_1: "sleep level 1",
    Section.SLEEP_2: "sleep level 2",
    Section.WEIGHTS: "weights",
}


def run_engine(
    settings: EngineSettings, *, environment: Mapping[str, str], folder: Path, timeout_s: float
) -> tuple[dict[str, Facts], str]:
    """Facts by section, and how the process ended if it did not end well."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "settings.json"
    settings.write(file)
    Path(settings.facts).unlink(missing_ok=True)
    command = [sys.executable, "-m", MODULE, str(file)]
    ended = run_supervised(command, environment=environment, log=folder / "engine.log", timeout_s=timeout_s)
    return read_facts(Path(settings.facts)), ended


def read_facts(file: Path) -> dict[str, Facts]:
    lines = file.read_text().splitlines() if file.exists() else []
    facts = [json.loads(line) for line in lines]
    return {one.pop("section"): one for one in facts}


def judged(
    facts: Mapping[str, Facts], ended: str, *, sections: Sequence[Section], bounds: LogProbBounds
) -> Iterator[tuple[Section, Verdict]]:
    """A verdict for each section; the first without facts is that in which the process ended."""
    is_over = False
    for section in sections:
        if section in facts:
            extra = {"bounds": bounds} if section in _WITH_BOUNDS else {}
            yield section, JUDGES[section](facts[section], **extra)
        else:
            yield section, skipped("the engine had ended") if is_over else no_result(ended)
            is_over = True


def no_result(ended: str) -> Verdict:
    """
    Args:
        ended: how the engine's process ended.
    """
    remedy = "vLLM's log says more; GPU memory, shared memory and versions are the usual causes"
    return failed(ended or "no result", remedy)


def tell(
    results: Results,
    facts: Mapping[str, Facts],
    ended: str,
    *,
    sections: Sequence[Section],
    bounds: LogProbBounds,
    prefix: str = "",
    tells_start: bool = True,
) -> None:
    """
    Args:
        tells_start: False for later sections of an engine whose start has been told.
    """
    told = (Section.START, *sections) if tells_start else sections
    for section, verdict in judged(facts, ended, sections=told, bounds=bounds):
        measured = facts.get(section, {})
        results.add(f"{prefix}{NAMES[section]}", verdict, seconds=measured.get("seconds", 0.0), measured=measured)
