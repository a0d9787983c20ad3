"""Published speed-ups: the job of each, as far as its paper or script says it, and its steps.

Where a page gives seconds of both systems, the engines are fitted to one and the other is planned. Where it gives a
ratio only, both are planned, with the engines of its year. Assumed where nothing is said: log-normal lengths, of a
median of 4,000 tokens and sigma 0.9, and of Qwen3 in its thinking mode 9,000 and 0.75.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.verl_job.run import CASES, FIXED, JOB, PUBLISHED
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.systems import (
    Habits,
    System,
    april,
    async_dapo_2025,
    copris,
    dynamic_sampling,
    recipe,
    verl_colocate_async,
    verl_sync,
)

BASE = {"length_median_tok": 4000.0, "length_sigma": 0.9}
THINKING = {"length_median_tok": 9000.0, "length_sigma": 0.75}
FEW_LONG = {"length_median_tok": 2500.0, "length_sigma": 0.8}
HOUR, MINUTE = 3600.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of which more than one system's step was published.

    Attributes:
        inputs: of the planner.
        steps: systems, with the seconds of a step: a synchronous one, the fast one, and others of the same table.
    """

    source: str
    inputs: Mapping[str, Any]
    steps: tuple[tuple[System, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A speed-up without seconds: that of `fast` over `slow`.

    Attributes:
        of: reads it off their mean steps.
    """

    source: str
    inputs: Mapping[str, Any]
    slow: System
    fast: System
    published: float
    of: Callable[[StepMeasure, StepMeasure], float]


def _steps(slow: StepMeasure, fast: StepMeasure) -> float:
    return slow.step_s / fast.step_s


def _rollouts(slow: StepMeasure, fast: StepMeasure) -> float:
    return slow.rollout_s / fast.rollout_s


def _throughputs(slow: StepMeasure, fast: StepMeasure) -> float:
    return fast.tokens_per_s_per_gpu / slow.tokens_per_s_per_gpu


def _rollout_throughputs(slow: StepMeasure, fast: StepMeasure) -> float:
    return (fast.generated_tok / fast.rollout_s) / (slow.generated_tok / slow.rollout_s)


def _copris(model: str, accelerator: str, gpus: int, lengths: Mapping[str, float], limit_tok: int) -> dict[str, Any]:
    """CoPRIS Table 3 and its script: B = 64 in one update, n = 8, engines of one GPU, no filter."""
    return {
        "model": model,
        "accelerator": accelerator,
        "servers": gpus,
        "gpu_memory_utilization": 0.8,
        "max_num_seqs": 1024,
        "train_batch_size": 64,
        "rollout_n": 8,
        "max_response_length": limit_tok,
        "valid_share": 1.0,
        "updates": 1,
        **lengths,
    }


def _pool(size: int) -> System:
    return copris(pool_size=size, over_sampling=size)


def _naive_partial(requests: int) -> System:
    """CoPRIS's "naive partial rollout": a fixed batch of requests at once, no further ones until the stop."""
    habits = Habits(scores_buffer=True, always_scores=True, balances_steps=True)
    return replace(april(over_sampling=requests // 8), name=f"naive partial {requests}", habits=habits)


SYNC = verl_sync(groups=64)
EARLIER_SYNC = replace(verl_sync(groups=64, poll_s=0.0), name="verl sync of 2025")  # waits on its workers
RECIPE_SYNC = replace(verl_sync(groups=128, poll_s=0.0), name="verl sync without polling")
# verl-recipe's: B groups in order of completion, as many trajectories in flight as a batch has, at most 2 B prompts.
PARTIAL_ROLLOUT = replace(
    recipe(
        "partial_rollout",
        rollout_pool_size=128 * 8,
        max_loads_per_server=1_000_000,
        over_sampling_batch_size=256,
        max_staleness=None,
    ),
    habits=Habits(always_scores=True, balances_steps=True),
)
PARTIAL = recipe("partial")  # this recipe's default, which nobody has published
_VERL: dict[str, Any] = {
    "model": JOB.model,
    "accelerator": JOB.accelerator,
    "servers": JOB.servers,
    "tensor_parallel_size": JOB.gpus,
    "train_batch_size": JOB.groups,
    "rollout_n": JOB.n,
    "max_response_length": JOB.limit_tok,
    "length_median_tok": float(JOB.median_tok),
    "length_sigma": JOB.sigma,
    **FIXED,
    **CASES[PUBLISHED],
}
COPRIS_1_5B = "CoPRIS, R1-1.5B, 16 A800"
VERLS_JOB = "verl, Qwen3.5-35B-A3B, 32 H100"
JOBS = (
    Job(
        source=VERLS_JOB,
        inputs=_VERL,
        steps=((SYNC, 22.79 * HOUR / 150), (verl_colocate_async(groups=64), 14.72 * HOUR / 150)),
    ),
    Job(
        source=COPRIS_1_5B,
        inputs=_copris("r1-distill-qwen-1.5b", "a800", 16, BASE, 15360),
        steps=(
            (EARLIER_SYNC, 54.05 * HOUR / 1000),
            (_pool(1024), 123.12),
            (_pool(512), 139.08),
            (_pool(1536), 144.0),
            (_pool(2048), 161.06),
            (_naive_partial(1536), 126.81),
        ),
    ),
    Job(
        source="CoPRIS, R1-7B, 32 H800",
        inputs=_copris("r1-distill-qwen-7b", "h800", 32, BASE, 15360),
        steps=((EARLIER_SYNC, 43.57 * HOUR / 1000), (_pool(1024), 22.44 * HOUR / 1000)),
    ),
    Job(
        source="CoPRIS, Qwen3-8B, 32 H800",
        inputs=_copris("qwen3-8b", "h800", 32, THINKING, 15360),
        steps=((EARLIER_SYNC, 54.42 * HOUR / 1000), (_pool(1024), 31.16 * HOUR / 1000)),
    ),
    # Its script: B = 128 in two updates, n = 8, 8K, engines of 2 GPUs, Ulysses 2. Its page: about 3 % of the responses
    # are far longer than the median.
    Job(
        source="partial_rollout, Qwen3-4B, 16 H20",
        inputs={
            "model": "qwen3-4b",
            "accelerator": "h20",
            "servers": 8,
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.8,
            "max_num_seqs": 1024,
            "train_batch_size": 128,
            "rollout_n": 8,
            "max_response_length": 8192,
            "valid_share": 1.0,
            "updates": 2,
            "gpus_per_rank": 2,
            **FEW_LONG,
        },
        steps=((RECIPE_SYNC, (67 * HOUR + 34 * MINUTE) / 200), (PARTIAL_ROLLOUT, (33 * HOUR + 2 * MINUTE) / 110)),
    ),
)

_ENGINE_2025 = {"engine": "published-2025", "max_num_seqs": 1024}
# scripts/partial_rollout/qwen/grpo/run-qwen3-4B-*.sh: 8 MI300X, engines of 2, B = 32, n = 8, 16K.
_APRIL: dict[str, Any] = {
    "model": "qwen3-4b",
    "accelerator": "mi300x",
    "servers": 4,
    "tensor_parallel_size": 2,
    "gpu_memory_utilization": 0.6,
    "train_batch_size": 32,
    "rollout_n": 8,
    "valid_share": 1.0,
    **THINKING,
    **_ENGINE_2025,
}
# The 2025 recipe's test_qwen3_8b.sh at 16K: B = 512 of 1024 drawn, n = 16; two nodes of H800 are assumed.
_DAPO_2025 = {"accelerator": "h800", "servers": 16, **BASE, **_ENGINE_2025}
# arXiv:2505.07608: 256 GPUs, B = 512, 32K. Accelerator, n and the share of valid groups are assumed.
_MIMO = {"model": "mimo-7b", "accelerator": "h20", "servers": 256, "max_response_length": 32768, "valid_share": 0.5}
_MIMO |= THINKING | _ENGINE_2025
_FIFO = recipe(
    "discard fifo",
    rollout_strategy="discard",
    stop_rule="fifo",
    rollout_pool_size=512 * 16,
    max_loads_per_server=1_000_000,
    over_sampling_batch_size=1024,
)
RATIOS = (
    *(
        Ratio(
            source=f"CoPRIS, Qwen3-8B, {limit}K: step",
            inputs=_copris("qwen3-8b", "h800", 32, THINKING, limit * 1024 - 1024) | _ENGINE_2025,
            slow=EARLIER_SYNC,
            fast=_pool(1024),
            published=published,
            of=_steps,
        )
        for limit, published in ((8, 1.27), (40, 2.26))
    ),
    *(
        Ratio(
            source=f"APRIL, {data}: rollout throughput",
            inputs=_APRIL,
            slow=dynamic_sampling(batch=32),
            fast=april(over_sampling=64),
            published=published,
            of=_rollout_throughputs,
        )
        for data, published in (("DAPO-Math-17k", 1.17), ("DeepScaleR", 1.21), ("DeepMath-103K", 1.35))
    ),
    *(
        Ratio(
            source=f"async DAPO 2025: {what}",
            inputs=_DAPO_2025,
            slow=dynamic_sampling(batch=1024),
            fast=async_dapo_2025(over_sampling=1024),
            published=published,
            of=of,
        )
        for what, published, of in (("rollout", 1 / 0.8, _rollouts), ("throughput", 1.15, _throughputs))
    ),
    *(
        Ratio(
            source=f"MiMo: {what}",
            inputs=_MIMO,
            slow=dynamic_sampling(batch=512),
            fast=_FIFO,
            published=published,
            of=of,
        )
        for what, published, of in (("rollout", 2.61, _rollouts), ("step", 2.29, _steps))
    ),
)
