"""The measured speed as the planner's record, and the step that the planner expects with it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...async_dapo.config import ConfigError, RolloutStrategy
from ...async_dapo.core.stop_rules import StopRuleName
from ...async_dapo.hardware import Accelerator, ModelShape
from ..plan.candidates import recipe_candidates
from ..plan.inputs import Inputs
from ..plan.sweep import sweep
from .verdicts import Verdict, failed, passed

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


def write_record(lines: Sequence[Mapping[str, Any]], file: Path) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def prefill_flop_share(
    prefills: Sequence[Mapping[str, float]], *, model: ModelShape, accelerator: Accelerator
) -> float | None:
    """Share of peak that the longest prompt's prefill reached, as the planner's input; None without one."""
    if not prefills:
        return None
    longest = max(prefills, key=lambda one: one["context_tok"])
    flops = model.forward_flops(longest["context_tok"], longest["context_tok"] ** 2)
    return min(1.0, flops / (longest["seconds"] * accelerator.bf16_tflop_s * 1e12))


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
            f"no cell fits into a KV cache of {facts['kv_room_tok']} tokens", "free memory, or raise its utilization"
        ), {}
    inputs = Inputs.load(None, {**reference, "calibrate": str(write_record(lines, record))})
    try:
        scenario = inputs.scenario()
    except ConfigError as error:
        return failed(str(error), "measure again on an idle machine"), {}
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
        f"up to {measured['best_tokens_per_s']:,.0f} tokens/s; {scenario.measured}; the planner's step for "
        f"{scenario.num_servers} servers and B={scenario.train_batch_size} is {row.mean.step_s:.1f} s"
    )
    if scenario.measured.relative_rms > MOST_RMS:
        return failed(
            said, f"the lines differ from the fit by more than {MOST_RMS:.0%}: measure again on an idle machine"
        ), measured
    return passed(said), measured
