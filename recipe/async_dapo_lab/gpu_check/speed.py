"""The engine's speed over batch and context, as the planner's record, and the step that the planner expects with it."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...async_dapo.core.stop_rules import StopRuleName
from ...async_dapo.option_values import ConfigError, RolloutStrategy
from ..plan.candidates import recipe_candidates
from ..plan.hardware import ACCELERATORS, Accelerator, ModelShape, find_accelerator, load_model
from ..plan.inputs import Inputs
from ..plan.sweep import sweep
from .machine import GB, Gpu
from .verdicts import Verdict, failed, passed

BATCHES = (1, 8, 32, 64, 128, 256)
CONTEXTS_TOK = (512, 2048, 8192, 16_384)
SHORT_TOK, LONG_TOK = 32, 160
# Of the reference script, test_qwen3_8b.sh; its lengths are the planner's own.
REFERENCE: dict[str, Any] = {
    "servers": 8,
    "train_batch_size": 512,
    "rollout_n": 16,
    "max_response_length": 8192,
    "gpu_memory_utilization": 0.8,
}
TINY: dict[str, Any] = {
    "servers": 1,
    "train_batch_size": 8,
    "rollout_n": 8,
    "max_response_length": 336,
    "prompt_len_tok": 10,
    "length_median_tok": 60,
    "max_num_seqs": 96,
}
MOST_RMS = 0.25  # of the fit, over the record's lines
_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    batch: int
    context_tok: int  # of every request, before it generates

    @property
    def kv_tok(self) -> int:
        """In the cache while the second part of the long responses is generated, on average."""
        return self.batch * (self.context_tok + (SHORT_TOK + LONG_TOK) // 2)


def cells(
    *, kv_room_tok: int, batches: Sequence[int] = BATCHES, contexts_tok: Sequence[int] = CONTEXTS_TOK
) -> Iterator[Cell]:
    """Those that fit into the KV cache."""
    for context_tok, batch in itertools.product(contexts_tok, batches):
        if batch * (context_tok + LONG_TOK) <= kv_room_tok:
            yield Cell(batch=batch, context_tok=context_tok)


def record_line(cell: Cell, *, short_s: float, long_s: float) -> dict[str, float]:
    """The difference of two generations is decoding alone, without prefill and start.

    Args:
        short_s, long_s: seconds in which every request of the cell got `SHORT_TOK` and `LONG_TOK` tokens.
    """
    tokens_per_s = cell.batch * (LONG_TOK - SHORT_TOK) / (long_s - short_s)
    return {"inflight": cell.batch, "kv_tok": cell.kv_tok, "tokens_per_s": round(tokens_per_s, 2)}


def prefill_flop_share(
    prefills: Sequence[Mapping[str, float]], *, model: ModelShape, accelerator: Accelerator
) -> float | None:
    """Share of peak that the longest prompt's prefill reached, as the planner's input; None without one."""
    if not prefills:
        return None
    longest = max(prefills, key=lambda one: one["context_tok"])
    flops = model.forward_flops(longest["context_tok"], longest["context_tok"] ** 2)
    return min(1.0, flops / (longest["seconds"] * accelerator.bf16_tflop_s * 1e12))


def hardware(gpus: Sequence[Gpu], prefills: Sequence[Mapping[str, float]], model: Path) -> dict[str, Any]:
    """Inputs of the planner that the accelerator decides; none on a CPU."""
    if not gpus:
        return {}
    preset = next((name for name in ACCELERATORS if name in gpus[0].name.lower()), None)
    if preset is None:
        return {"memory_gb": gpus[0].memory_bytes / GB}
    share = prefill_flop_share(prefills, model=load_model(str(model)), accelerator=find_accelerator(preset))
    return {"accelerator": preset} | ({} if share is None else {"prefill_flop_share": share})


def judge_speed(
    facts: Mapping[str, Any], *, record: Path, reference: Mapping[str, Any]
) -> tuple[Verdict, dict[str, float]]:
    """Fit the record as the planner does, and simulate a few of the reference's steps with it.

    Args:
        reference: inputs of the planner, by name.
    """
    lines = facts["record"]
    if not lines:
        return failed(
            f"the KV cache of {facts['kv_room_tok']} tokens is too small to measure", "free GPU memory, see `GPUs`"
        ), {}
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    inputs = Inputs.load(None, {**reference, "calibrate": str(record)})
    try:
        scenario = inputs.scenario()
    except ConfigError as error:
        return failed(str(error), "end other work on this machine and measure again"), {}
    assert scenario.measured is not None
    candidates = recipe_candidates(
        scenario, strategies=[RolloutStrategy.PARTIAL], stop_rules=[StopRuleName.FIRST_COMPLETED], concurrency=[]
    )
    [row] = sweep(scenario, candidates[:1], steps=_STEPS)
    measured = {
        "step_s": float(row.mean.step_s),
        "rollout_s": float(row.mean.rollout_s),
        "base_ms": 1e3 * float(scenario.measured.base_s),
        "per_request_us": 1e6 * float(scenario.measured.per_request_s),
        "relative_rms": scenario.measured.relative_rms,
        "best_tokens_per_s": max(line["tokens_per_s"] for line in lines),
    }
    said = (
        f"up to {measured['best_tokens_per_s']:,.0f} tokens/s; planned step {row.mean.step_s:.1f} s with "
        f"{scenario.num_servers} engines and B={scenario.train_batch_size}; record: {record.name}"
    )
    if scenario.measured.relative_rms > MOST_RMS:
        return failed(
            f"speeds are {scenario.measured.relative_rms:.0%} off the planner's formula, at most {MOST_RMS:.0%}",
            "end other work on this machine and measure again",
        ), measured
    return passed(said), measured
