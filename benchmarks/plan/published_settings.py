"""The settings of published runs, as far as papers and scripts say, and what is assumed where they do not."""

from dataclasses import dataclass, replace

from recipe.async_dapo_lab.plan.hardware import find_accelerator, load_model
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.measures import StepMeasure, mean_of
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import (
    Habits,
    System,
    april,
    async_dapo_2025,
    copris,
    dynamic_sampling,
    recipe,
    verl_sync,
)

R1_AND_BASE = LogNormalLengths(median_tok=4000, sigma=0.9, correlation=0.5)  # assumed
QWEN3_THINKING = LogNormalLengths(median_tok=9000, sigma=0.75, correlation=0.5)  # the same; cut at each limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulated run."""

    scenario: Scenario
    system: System
    warmup: int
    steps: int


def run(case: Case) -> StepMeasure:
    training = TrainingRun(case.scenario, case.system)
    for _ in range(case.warmup):
        training.step()
    return mean_of([training.step() for _ in range(case.steps)])


def copris_setting(
    model: str, accelerator: str, gpus: int, lengths: LogNormalLengths, limit_tok: int = 15360
) -> Scenario:
    """CoPRIS Table 3 and CoPRIS_scripts/run_CoPRIS.sh: B = 64, n = 8, TP 1, no filter."""
    return Scenario(
        model=load_model(model),
        accelerator=find_accelerator(accelerator),
        num_servers=gpus,
        gpu_memory_utilization=0.8,
        max_num_seqs=1024,
        train_batch_size=64,
        rollout_n=8,
        max_response_length=limit_tok,
        lengths=lengths,
        valid_share=1.0,
    )


def april_setting() -> Scenario:
    """scripts/partial_rollout/qwen/grpo/run-qwen3-4B-*.sh: 8 MI300X, engines of 2, B = 32, n = 8, 16K."""
    return Scenario(
        model=load_model("qwen3-4b"),
        accelerator=find_accelerator("mi300x"),
        num_servers=4,
        tensor_parallel_size=2,
        gpu_memory_utilization=0.6,
        max_num_seqs=1024,
        train_batch_size=32,
        rollout_n=8,
        max_response_length=16384,
        lengths=QWEN3_THINKING,
        valid_share=1.0,
    )


def async_dapo_setting() -> Scenario:
    """The 2025 recipe's test_qwen3_8b.sh at 16K: B = 512 of 1024 drawn, n = 16; two nodes of H800 are assumed."""
    return Scenario(
        model=load_model("qwen3-8b"),
        accelerator=find_accelerator("h800"),
        num_servers=16,
        max_num_seqs=1024,
        train_batch_size=512,
        rollout_n=16,
        max_response_length=16384,
        lengths=R1_AND_BASE,
        valid_share=0.6,
    )


def mimo_setting() -> Scenario:
    """arXiv:2505.07608: 256 GPUs, B = 512, 32K. Accelerator, n and the share of valid groups are assumed."""
    return Scenario(
        model=load_model("mimo-7b"),
        accelerator=find_accelerator("h20"),
        num_servers=256,
        max_num_seqs=1024,
        train_batch_size=512,
        rollout_n=16,
        max_response_length=32768,
        lengths=QWEN3_THINKING,
        valid_share=0.5,
    )


def naive_partial(requests: int) -> System:
    """CoPRIS's "naive partial rollout": a fixed batch of requests at once, no further ones until the stop."""
    system = april(over_sampling=requests // 8)
    return replace(system, name=f"naive partial {requests}", habits=Habits(scores_buffer=True, always_scores=True))


def cases() -> dict[str, Case]:
    runs: dict[str, Case] = {}

    def add(name: str, scenario: Scenario, system: System, warmup: int, steps: int) -> None:
        runs[name] = Case(scenario=scenario, system=system, warmup=warmup, steps=steps)

    small = copris_setting("r1-distill-qwen-1.5b", "a800", 16, R1_AND_BASE)
    middle = copris_setting("r1-distill-qwen-7b", "h800", 32, R1_AND_BASE)
    add("1.5b sync", small, verl_sync(groups=64, poll_s=0.0), 1, 40)
    add("7b sync", middle, verl_sync(groups=64, poll_s=0.0), 1, 40)
    add("7b copris", middle, copris(pool_size=1024, over_sampling=1024), 20, 40)
    for size in (512, 1024, 1536, 2048):
        add(f"1.5b copris {size}", small, copris(pool_size=size, over_sampling=size), 30, 40)
    add("1.5b naive 1536", small, naive_partial(1536), 30, 40)
    for limit in (8, 16, 24, 32, 40):
        setting = copris_setting("qwen3-8b", "h800", 32, QWEN3_THINKING, limit * 1024 - 1024)
        add(f"8b {limit}k sync", setting, verl_sync(groups=64, poll_s=0.0), 1, 30)
        add(f"8b {limit}k copris", setting, copris(pool_size=1024, over_sampling=1024), 20, 30)
    add("april baseline", april_setting(), dynamic_sampling(batch=32), 1, 60)
    add("april", april_setting(), april(over_sampling=64), 20, 60)
    add("async dapo baseline", async_dapo_setting(), dynamic_sampling(batch=1024), 1, 4)
    add("async dapo", async_dapo_setting(), async_dapo_2025(over_sampling=1024), 1, 4)
    add("mimo baseline", mimo_setting(), dynamic_sampling(batch=512), 1, 6)
    fifo = recipe("discard fifo", rollout_pool_size=512 * 16, over_sampling_batch_size=1024)
    add("mimo fifo", mimo_setting(), fifo, 3, 6)
    return runs
