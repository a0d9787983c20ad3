"""An engine: what its process is told to do, and a judgement of each thing that it measured."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from .supervised import run_supervised
from .verdicts import Results, Verdict, failed, passed, skipped

MODULE = f"{__package__}.engine_process"
GB = 1e9
RUN = "gpu_check/01000000"  # names the run in stamps of weights
STOP_LIMIT_S = 5.0  # a stop takes some engine steps; longer, and it waits for something
LEAK_LIMIT_BYTES = 0.5 * GB  # over a sleep and a wake-up
REPORT = "this must not happen on any hardware: do not train, and report it with the folder of the output"
LEAST_SPREAD = 3.0  # between the old weights' difference and the new ones', after a transfer

Facts = dict[str, Any]


class Section(StrEnum):
    """In the order in which they run: each needs what those before it have left."""

    START = "start"
    GENERATE = "generate"
    LOG_PROBS = "log-probs of engine, trainer"
    ABORT = "abort"
    KEEP = "pause and resume"
    PREFIX_CACHE = "prefix cache"
    DRAFTS = "drafts by suffix decoding"
    SLEEP_1 = "sleep level 1"
    SLEEP_2 = "sleep level 2"
    WEIGHTS = "weights"
    SPEED = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str  # folder
    device: str  # cpu or cuda
    dtype: str
    attention: str  # of transformers, for the trainer's log-probs
    facts: str  # file
    sockets: str  # folder, with a short path
    sections: tuple[Section, ...]
    requests: int  # of the first section
    compared: int  # of these, with transformers
    prompt_tok: int
    response_tok: int
    max_model_len: int
    max_num_seqs: int
    bucket_mb: int  # of a weight transfer, as rollout.checkpoint_engine.update_weights_bucket_megabytes
    ballast_bytes: int  # at most
    batches: tuple[int, ...] = ()  # of the speed's cells
    contexts_tok: tuple[int, ...] = ()
    times: int = 1  # that each cell is measured: the least counts, as other work only adds
    load_format: str = "auto"
    gpu_memory_utilization: float = 0.5
    engine_kwargs: dict[str, Any] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text()))


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


def judge_start(facts: Facts, bounds: LogProbBounds) -> Verdict:
    async_scheduling, runner = (facts[name] for name in ("async_scheduling", "second_runner"))
    if facts["kv_room_tok"] < 1:
        return failed("the engine has no room for a KV cache", "free GPU memory: see the check of GPUs")
    return passed(
        f"KV cache of {facts['kv_room_tok']:,} tokens, asynchronous scheduling {'on' if async_scheduling else 'off'}, "
        f"{'second' if runner else 'first'} model runner"
    )


def judge_generate(facts: Facts, bounds: LogProbBounds) -> Verdict:
    if facts["complete"] < facts["requests"]:
        missing = facts["requests"] - facts["complete"]
        return failed(f"{missing} of {facts['requests']} requests lack tokens", _OTHER_VLLM)
    return passed(f"{facts['requests']} requests, {facts['tokens']} tokens, {_speed(facts)}")


def _speed(facts: Facts) -> str:
    """Beside that of the plain engine, where it is known."""
    tokens_per_s = facts["tokens"] / facts["generating_s"]
    plain = facts.get("plain_tokens_per_s")
    return f"{tokens_per_s:,.0f} tokens/s" + (f", {tokens_per_s / plain:.2f} x the plain engine's" if plain else "")


def judge_log_probs(facts: Facts, bounds: LogProbBounds) -> Verdict:
    said = (
        f"mean {facts['mean_diff']:.2g} (limit {bounds.mean:g}), most {facts['max_diff']:.2g} (limit {bounds.most:g}) "
        f"nats over {facts['compared_tok']} tokens"
    )
    if not (facts["mean_diff"] <= bounds.mean and facts["max_diff"] <= bounds.most):  # or one is not a number
        return failed(
            said,
            "engine and trainer compute different probabilities; to find the cause, train with "
            "actor_rollout_ref.rollout.enforce_eager=True, then with VLLM_USE_V2_MODEL_RUNNER=0",
        )
    return passed(said)


def judge_abort(facts: Facts, bounds: LogProbBounds) -> Verdict:
    if facts["aborted_reason"] != "abort" or not 0 < facts["aborted_tok"] < facts["wanted_tok"]:
        return failed(
            f"the request ended by `{facts['aborted_reason']}` with {facts['aborted_tok']} tokens", _OTHER_VLLM
        )
    if facts["kept_log_probs"] != facts["aborted_tok"] or facts["other_tok"] != facts["wanted_tok"]:
        return failed("tokens lack their log-probs, or another request was ended as well", _OTHER_VLLM)
    if facts["abort_s"] > STOP_LIMIT_S:
        return failed(f"took {facts['abort_s']:.1f} s, at most {STOP_LIMIT_S:g} s", _BUSY)
    return passed(f"{1e3 * facts['abort_s']:.0f} ms; its {facts['aborted_tok']} tokens are kept")


_OTHER_VLLM = "install vLLM 0.24.0, which verl[vllm]==0.9.1 brings"
_BUSY = "end other work on this GPU and check again; every training step stops its engines"
_BESIDE = (
    "set actor_rollout_ref.rollout.free_cache_engine=False, and gpu_memory_utilization so that the trainer fits beside"
)


def judge_keep(facts: Facts, bounds: LogProbBounds) -> Verdict:
    if facts["meanwhile_tok"]:
        return failed(f"{facts['meanwhile_tok']} tokens came during the pause", _NO_STALE_KV)
    if facts["complete"] < facts["requests"] or facts["of_two_versions"] < facts["requests"]:
        return failed(
            f"of {facts['requests']} requests {facts['complete']} ended, {facts['of_two_versions']} with tokens of "
            "both versions",
            _NO_STALE_KV,
        )
    if facts["pause_s"] > STOP_LIMIT_S:
        return failed(f"the pause took {facts['pause_s']:.1f} s, at most {STOP_LIMIT_S:g} s", _BUSY)
    if (exact := judge_log_probs(facts, bounds)).is_failure:
        return exact
    return passed(f"pause {1e3 * facts['pause_s']:.0f} ms, resume {1e3 * facts['resume_s']:.0f} ms")


_NO_STALE_KV = "do not use async_dapo.rollout_strategy=partial_stale_kv on this vLLM"


def judge_prefix_cache(facts: Facts, bounds: LogProbBounds) -> Verdict:
    if not facts["same_version_tok"]:
        return failed("a prompt that was computed is not found again", _OTHER_VLLM)
    if facts["next_version_tok"]:
        return failed(
            f"{facts['next_version_tok']} tokens of older weights were found", f"do not train with it; {_OTHER_VLLM}"
        )
    if not facts["was_reset"] or facts["after_reset_tok"]:
        return failed("the cache cannot be reset", _OTHER_VLLM)
    return passed(f"{facts['same_version_tok']} tokens found, 0 under the next version; reset {facts['reset_s']:.2f} s")


def judge_drafts(facts: Facts, bounds: LogProbBounds) -> Verdict:
    if not facts["accepted_tok"]:
        return failed(f"of {facts['drafted_tok']} drafted tokens none was accepted", _NO_DRAFTS)
    if (exact := judge_log_probs(facts, bounds)).is_failure:
        return failed(f"drafted tokens have other probabilities: {exact.found}", _NO_DRAFTS)
    tokens_per_step = facts["tokens"] / (facts["tokens"] - facts["accepted_tok"])
    return passed(f"{tokens_per_step:.2f} tokens a step of answers given again, {_speed(facts)}")


_NO_DRAFTS = "set async_dapo.drafts=null on this vLLM"


def judge_sleep(facts: Facts, bounds: LogProbBounds) -> Verdict:
    said = (
        f"sleep {facts['sleep_s']:.1f} s, wake-up {facts['wake_s']:.1f} s, {facts['freed_bytes'] / GB:.1f} GB freed, "
        f"{facts['leaked_bytes'] / GB:+.2f} GB in use after it"
    )
    if facts["freed_bytes"] <= 0:
        return failed(said, _BESIDE)
    if facts["leaked_bytes"] > LEAK_LIMIT_BYTES:
        return failed(f"{said}: a leak, at most {LEAK_LIMIT_BYTES / GB:g} GB", _BESIDE)
    if (exact := judge_log_probs(facts, bounds)).is_failure:
        return failed(f"other probabilities after it: {exact.found}", exact.remedy)
    return passed(said)


def judge_weights(facts: Facts, bounds: LogProbBounds) -> Verdict:
    speed = facts["bytes"] / facts["send_s"] / GB
    said = (
        f"{facts['bytes'] / GB:.2f} GB in {facts['tensors']} tensors by {facts['way']}: {facts['send_s']:.2f} s, "
        f"{speed:.2f} GB/s; verl's own adapter {facts['verls_s']:.2f} s"
    )
    if (exact := judge_log_probs(facts, bounds)).is_failure:
        return failed(f"the engine has other weights than were sent: {exact.found}", exact.remedy)
    if facts["old_mean_diff"] < LEAST_SPREAD * facts["mean_diff"]:
        return failed(f"the engine may have its old weights: they differ by {facts['old_mean_diff']:.2g} nats", REPORT)
    if "expected weights" not in facts["refusal"]:
        return failed("weights of another version were taken", REPORT)
    return passed(said)


JUDGES: dict[Section, Callable[[Facts, LogProbBounds], Verdict]] = {
    Section.START: judge_start,
    Section.GENERATE: judge_generate,
    Section.LOG_PROBS: judge_log_probs,
    Section.ABORT: judge_abort,
    Section.KEEP: judge_keep,
    Section.PREFIX_CACHE: judge_prefix_cache,
    Section.DRAFTS: judge_drafts,
    Section.SLEEP_1: judge_sleep,
    Section.SLEEP_2: judge_sleep,
    Section.WEIGHTS: judge_weights,
}


def run_engine(
    settings: EngineSettings, *, environment: Mapping[str, str], timeout_s: float
) -> tuple[dict[str, Facts], str]:
    """Facts by section, and how the process ended if it did not end well."""
    facts = Path(settings.facts)
    facts.parent.mkdir(parents=True, exist_ok=True)
    facts.unlink(missing_ok=True)
    file = facts.with_name("settings.json")
    settings.write(file)
    command = [sys.executable, "-m", MODULE, str(file)]
    ended = run_supervised(command, environment=environment, log=facts.with_name("engine.log"), timeout_s=timeout_s)
    return read_facts(facts), ended


def read_facts(file: Path) -> dict[str, Facts]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {one.pop("section"): one for one in map(json.loads, lines)}


def judged(
    facts: Mapping[str, Facts], ended: str, *, sections: Sequence[Section], bounds: LogProbBounds
) -> Iterator[tuple[Section, Verdict]]:
    """A verdict for each section; the first without facts is that in which the process ended."""
    is_over = False
    for section in sections:
        if section in facts:
            yield section, JUDGES[section](facts[section], bounds)
        else:
            yield section, skipped("the engine had ended") if is_over else no_result(ended)
            is_over = True


def no_result(ended: str) -> Verdict:
    """
    Args:
        ended: how the engine's process ended.
    """
    remedy = "read its log; the usual causes are too little GPU or shared memory, and other versions"
    return failed(ended or "no result", remedy)


def tell(
    results: Results,
    facts: Mapping[str, Facts],
    ended: str,
    *,
    sections: Sequence[Section],
    bounds: LogProbBounds,
    prefix: str = "",
) -> None:
    for section, verdict in judged(facts, ended, sections=sections, bounds=bounds):
        measured = facts.get(section, {})
        results.add(f"{prefix}{section}", verdict, seconds=measured.get("seconds", 0.0), measured=measured)
