"""An engine: what its process is told to do, and a judgement of each thing that it measured."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from .speed import judge_speed
from .supervised import run_supervised
from .verdicts import Results, Verdict, failed, first_failure, skipped

MODULE = f"{__package__}.engine_process"
REPORT = "this must not happen on any hardware: do not train, and report it with the folder of the output"

CONTEXTS_TOK = (512, 4096, 16_384)

Facts = dict[str, Any]


class Section(StrEnum):
    """In the order in which they run."""

    START = "start"
    GENERATE = "generate"
    LOG_PROBS = "log-probs of engine, trainer"
    DRAFTS = "suffix decoding"
    SPEED = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What an engine's process is told. Sizes are a GPU's unless others are given."""

    model: str  # folder
    attention: str  # of transformers, for the trainer's log-probs
    facts: str  # file
    sections: tuple[Section, ...]
    device: str = "cuda"
    dtype: str = "bfloat16"
    requests: int = 256
    compared: int = 32  # of these, with transformers
    prompt_tok: int = 256
    response_tok: int = 256
    max_model_len: int = 2048
    max_num_seqs: int = 256
    batches: tuple[int, ...] = (1, 8, 24, 128)  # of the cells whose speed is measured
    contexts_tok: tuple[int, ...] = CONTEXTS_TOK
    times: int = 1  # that each cell is measured: the least counts, as other work only adds
    load_format: str = "auto"
    gpu_memory_utilization: float = 0.4
    engine_kwargs: dict[str, Any] = field(default_factory=dict)


ON_A_CPU: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "requests": 24,
    "compared": 8,
    "prompt_tok": 48,
    "response_tok": 96,
    "max_model_len": 1024,
    "max_num_seqs": 32,
    "gpu_memory_utilization": 0.1,
    "batches": (1, 4, 16),
    "contexts_tok": (64, 256),
    "times": 8,
    "engine_kwargs": {"distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor"},
}


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
_OTHER_VLLM = "install vLLM 0.24.0, which verl[vllm]==0.9.1 brings"
_NO_DRAFTS = "set async_dapo.drafts=null on this vLLM"
_OTHER_PROBABILITIES = (
    "engine and trainer compute different probabilities; to find the cause, train with "
    "actor_rollout_ref.rollout.enforce_eager=True, then with VLLM_USE_V2_MODEL_RUNNER=0"
)


def judge_start(facts: Facts, bounds: LogProbBounds) -> Verdict:
    room_tok, scheduling = facts["kv_room_tok"], "on" if facts["async_scheduling"] else "off"
    return first_failure(
        (room_tok > 0, "the engine has no room for a KV cache", "free GPU memory: see the check of GPUs"),
        else_found=f"KV cache of {room_tok:,} tokens, asynchronous scheduling {scheduling}, "
        f"{'second' if facts['second_runner'] else 'first'} model runner",
    )


def judge_generate(facts: Facts, bounds: LogProbBounds) -> Verdict:
    requests, missing = facts["requests"], facts["requests"] - facts["complete"]
    return first_failure(
        (not missing, f"{missing} of {requests} requests lack tokens", _OTHER_VLLM),
        else_found=f"{requests} requests, {facts['tokens']} tokens, {_speed(facts)}",
    )


def _speed(facts: Facts) -> str:
    """Beside that of the plain engine, where it is known."""
    tokens_per_s = facts["tokens"] / facts["generating_s"]
    plain = facts.get("plain_tokens_per_s")
    return f"{tokens_per_s:,.0f} tokens/s" + (f", {tokens_per_s / plain:.2f} x the plain engine's" if plain else "")


def judge_log_probs(facts: Facts, bounds: LogProbBounds) -> Verdict:
    mean, most = facts["mean_diff"], facts["max_diff"]
    said = (
        f"mean {mean:.2g} (limit {bounds.mean:g}), most {most:.2g} (limit {bounds.most:g}) nats over "
        f"{facts['compared_tok']} tokens"
    )
    is_near = mean <= bounds.mean and most <= bounds.most  # not where one is no number
    return first_failure((is_near, said, _OTHER_PROBABILITIES), else_found=said)


def judge_drafts(facts: Facts, bounds: LogProbBounds) -> Verdict:
    tokens, accepted, log_probs = facts["tokens"], facts["accepted_tok"], judge_log_probs(facts, bounds)
    return first_failure(
        (accepted > 0, f"of {facts['drafted_tok']} drafted tokens none was accepted", _NO_DRAFTS),
        (not log_probs.is_failure, f"drafted tokens have other probabilities: {log_probs.found}", _NO_DRAFTS),
        else_found=f"{tokens / (tokens - accepted):.2f} tokens a step of answers given again, {_speed(facts)}",
    )


JUDGES: dict[Section, Callable[[Facts, LogProbBounds], Verdict]] = {
    Section.START: judge_start,
    Section.GENERATE: judge_generate,
    Section.LOG_PROBS: judge_log_probs,
    Section.DRAFTS: judge_drafts,
    Section.SPEED: lambda facts, bounds: judge_speed(facts),
}


def run_engine(
    settings: EngineSettings, *, environment: Mapping[str, str], timeout_s: float
) -> tuple[dict[str, Facts], str]:
    """Facts by section, and how the process ended if it did not end well."""
    facts = Path(settings.facts)
    facts.parent.mkdir(parents=True, exist_ok=True)
    facts.unlink(missing_ok=True)
    file = facts.with_name("settings.json")
    file.write_text(json.dumps(asdict(settings), indent=2) + "\n")
    command = [sys.executable, "-m", MODULE, str(file)]
    ended = run_supervised(command, environment=environment, log=facts.with_name("engine.log"), timeout_s=timeout_s)
    lines = facts.read_text().splitlines() if facts.exists() else []
    return {one.pop("section"): one for one in map(json.loads, lines)}, ended


def tell(
    results: Results, facts: Mapping[str, Facts], ended: str, *sections: Section, bounds: str, prefix: str
) -> None:
    """A verdict for each section; the first without facts is that in which the process ended.

    Args:
        ended: how the engine's process ended.
    """
    remedy = "read its log; the usual causes are too little GPU or shared memory, and other versions"
    without_facts = failed(ended or "no result", remedy)
    for section in sections:
        measured = facts.get(section, {})
        if measured:
            verdict = JUDGES[section](measured, BOUNDS[bounds])
        else:
            verdict, without_facts = without_facts, skipped("the engine had ended")
        results.add(f"{prefix}{section}", verdict, seconds=measured.get("seconds", 0.0), measured=measured)
