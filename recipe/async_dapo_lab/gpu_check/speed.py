"""The engine's speed over batch and context: a record that the planner takes with `--calibrate`."""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...async_dapo.config.values import ConfigError
from ..plan.calibration import calibrate
from .supervised import run_supervised
from .verdicts import Verdict, failed, first_failure

MODULE = f"{__package__}.speed_process"
SHORT_TOK, LONG_TOK = 32, 160
MOST_RMS = 0.25  # of the fit, over the record's lines
_AGAIN = "end other work on this machine and measure again"

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSettings:
    """What an engine's process is told. Sizes are a GPU's unless others are given."""

    model: str  # folder
    folder: str  # of what it writes: `speed.jsonl`, `facts.json`, `engine.log`
    device: str = "cuda"
    dtype: str = "bfloat16"
    load_format: str = "dummy"  # weights are made up
    batches: tuple[int, ...] = (1, 8, 24, 128)
    contexts_tok: tuple[int, ...] = (512, 4096, 16_384)
    times: int = 1  # that each cell is measured: the least counts, as other work only adds
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.45  # the cells' room; the rest is for others that start meanwhile
    engine_kwargs: dict[str, Any] = field(default_factory=dict)


ON_A_CPU: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "load_format": "auto",
    "batches": (1, 4, 16),
    "contexts_tok": (64, 256),
    "times": 8,
    "max_num_seqs": 32,
    "gpu_memory_utilization": 0.1,
    "engine_kwargs": {"distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    batch: int
    context_tok: int  # of every request, before it generates

    @property
    def kv_tok(self) -> int:
        """In the cache while the second part of the long responses is generated, on average."""
        return self.batch * (self.context_tok + (SHORT_TOK + LONG_TOK) // 2)


def cells(*, kv_room_tok: int, batches: Sequence[int], contexts_tok: Sequence[int]) -> Iterator[Cell]:
    """Those that fit into the KV cache."""
    for context_tok, batch in itertools.product(contexts_tok, batches):
        if batch * (context_tok + LONG_TOK) <= kv_room_tok:
            yield Cell(batch=batch, context_tok=context_tok)


def record_line(cell: Cell, *, short_s: float, long_s: float) -> dict[str, float]:
    """The difference of two generations is decoding alone; what the short one takes beyond it is prefill and start.

    Args:
        short_s, long_s: seconds in which every request of the cell got `SHORT_TOK` and `LONG_TOK` tokens.
    """
    step_s = (long_s - short_s) / (LONG_TOK - SHORT_TOK)
    return {
        "inflight": cell.batch,
        "kv_tok": cell.kv_tok,
        "tokens_per_s": round(cell.batch / step_s, 2),
        "context_tok": cell.context_tok,
        "prefill_s": round(short_s - SHORT_TOK * step_s, 4),  # of all requests of the cell
    }


def run_engine(settings: SpeedSettings, *, environment: Mapping[str, str], timeout_s: float) -> tuple[Facts, str]:
    """What it measured, and how its process ended if it did not end well."""
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    told, facts = folder / "settings.json", folder / "facts.json"
    told.write_text(json.dumps(asdict(settings), indent=2) + "\n")
    facts.unlink(missing_ok=True)
    command = [sys.executable, "-m", MODULE, str(told)]
    ended = run_supervised(command, environment=environment, log=folder / "engine.log", timeout_s=timeout_s)
    return json.loads(facts.read_text()) if facts.exists() else {}, ended


def judge_speed(facts: Facts, ended: str) -> Verdict:
    """Whether the planner's formula fits the record."""
    if not facts:
        remedy = "read its log; the usual causes are too little GPU or shared memory, and other versions"
        return failed(ended or "no result", remedy)
    best, room_tok = facts["best_tokens_per_s"], facts["kv_room_tok"]
    if not best:
        return failed(f"the KV cache of {room_tok} tokens is too small to measure", "free GPU memory")
    try:
        fitted = calibrate(facts["record"])
    except ConfigError as error:
        return failed(str(error), _AGAIN)
    off = f"speeds are {fitted.relative_rms:.0%} off the planner's formula, at most {MOST_RMS:.0%}"
    found = (
        f"KV cache of {room_tok:,} tokens, asynchronous scheduling {'on' if facts['async_scheduling'] else 'off'}, "
        f"{'second' if facts['second_runner'] else 'first'} model runner, up to {best:,.0f} tokens/s; plan with "
        f"--calibrate {facts['record']}"
    )
    return first_failure((fitted.relative_rms <= MOST_RMS, off, _AGAIN), else_found=found)
