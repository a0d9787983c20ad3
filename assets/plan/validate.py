"""Published results against the simulator, with one set of constants: python -m assets.plan.validate [--jobs 2]

Writes validation.csv, validation.png and prints the table of README.md. Settings come from the papers and their published
scripts; what they do not say is marked as assumed in README.md.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from recipe.async_dapo.plan.hardware import find_accelerator
from recipe.async_dapo.plan.lengths import LogNormalLengths
from recipe.async_dapo.plan.measures import StepMeasure, mean_of
from recipe.async_dapo.plan.model_shape import load_model
from recipe.async_dapo.plan.scenario import Scenario
from recipe.async_dapo.plan.systems import (
    Habits,
    System,
    april,
    async_dapo_2025,
    copris,
    dynamic_sampling,
    recipe,
    verl_sync,
)
from recipe.async_dapo.plan.training_run import TrainingRun
from recipe.async_dapo.plan.workload import ValidShare

HERE = Path(__file__).parent

R1_AND_BASE = LogNormalLengths(median_tok=4000, sigma=0.9, correlation=0.5)  # FIELD.md, 16K
QWEN3_THINKING = LogNormalLengths(median_tok=9000, sigma=0.75, correlation=0.5)  # FIELD.md, 32K; cut at each limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulated run of the page."""

    scenario: Scenario
    system: System
    warmup: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One published number, and how to read it off simulated runs."""

    source: str
    what: str
    published: float
    cases: tuple[str, ...]
    value: Callable[..., float]


def copris_setting(model: str, accelerator: str, gpus: int, lengths: LogNormalLengths, limit_tok: int = 15360) -> Scenario:
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
        pass_rates=ValidShare(1.0),
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
        pass_rates=ValidShare(1.0),
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
        pass_rates=ValidShare(0.6),
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
        pass_rates=ValidShare(0.5),
    )


def naive_partial(requests: int) -> System:
    """CoPRIS's "naive partial rollout": a fixed batch of requests at once, no further ones until the stop."""
    system = april(over_sampling=requests // 8)
    return replace(system, name=f"naive partial {requests}", habits=Habits(scores_buffer=True))


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
    fifo = recipe("discard fifo", over_sampling_batch_size=1024, max_concurrent_prompts=128)
    add("mimo fifo", mimo_setting(), fifo, 3, 6)
    return runs


def _speed_up(slow: StepMeasure, fast: StepMeasure) -> float:
    return slow.step_s / fast.step_s


def claims() -> list[Claim]:
    def claim(source: str, what: str, published: float, names: str, value: Callable[..., float]) -> Claim:
        return Claim(source=source, what=what, published=published, cases=tuple(names.split(", ")), value=value)

    table_1, figure_3, table_2 = "CoPRIS Table 1", "CoPRIS Fig. 3a", "CoPRIS Table 2"
    rows = [
        claim(table_1, "R1-1.5B, 16 A800: step, sync / CoPRIS", 1.58, "1.5b sync, 1.5b copris 1024", _speed_up),
        claim(table_1, "R1-7B, 32 H800: step, sync / CoPRIS", 1.94, "7b sync, 7b copris", _speed_up),
        claim(table_1, "Qwen3-8B, 32 H800: step, sync / CoPRIS", 1.75, "8b 16k sync, 8b 16k copris", _speed_up),
        claim(figure_3, "Qwen3-8B, 8K: step, sync / CoPRIS", 1.27, "8b 8k sync, 8b 8k copris", _speed_up),
        claim(figure_3, "Qwen3-8B, 40K: step, sync / CoPRIS", 2.26, "8b 40k sync, 8b 40k copris", _speed_up),
    ]
    published = {"512": (139.08, 97.44, 15.96), "1024": (123.12, 75.43, 22.15), "1536": (144.0, 88.15, 29.21),
                 "2048": (161.06, 95.44, 37.30), "naive 1536": (126.81, 77.09, 23.79)}  # fmt: skip
    for size, (step_s, rollout_s, log_prob_s) in published.items():
        name = f"1.5b {size}" if size.startswith("naive") else f"1.5b copris {size}"
        if size != "1024":
            ratio = step_s / published["1024"][0]
            rows.append(claim(table_2, f"{size}: step, over that at 1024", round(ratio, 3),
                              f"{name}, 1.5b copris 1024", _speed_up))  # fmt: skip
        rows.append(claim(table_2, f"{size}: step [s]", step_s, name, lambda m: m.step_s))
        rows.append(claim(table_2, f"{size}: rollout [s]", rollout_s, name, lambda m: m.rollout_s))
        rows.append(claim(table_2, f"{size}: log-probs [s]", log_prob_s, name, lambda m: m.log_prob_s))
    for data, gain in (("DAPO-Math-17k", 1.17), ("DeepScaleR", 1.21), ("DeepMath-103K", 1.35)):
        rows.append(claim("APRIL", f"Qwen3-4B, {data}: rollout throughput", gain, "april, april baseline",
                          lambda a, b: a.rollout_tokens_per_s_per_gpu / b.rollout_tokens_per_s_per_gpu))  # fmt: skip
    rows += [
        claim("APRIL", "off-policy share of tokens", 0.40, "april", lambda m: m.off_policy_ratio),
        claim("async DAPO 2025", "rollout time, over the baseline's", 0.80, "async dapo, async dapo baseline",
              lambda a, b: a.rollout_s / b.rollout_s),
        claim("async DAPO 2025", "throughput, over the baseline's", 1.15, "async dapo, async dapo baseline",
              lambda a, b: a.tokens_per_s_per_gpu / b.tokens_per_s_per_gpu),
        claim("MiMo", "rollout, naive / FIFO", 2.61, "mimo baseline, mimo fifo", lambda a, b: a.rollout_s / b.rollout_s),
        claim("MiMo", "step, naive / FIFO", 2.29, "mimo baseline, mimo fifo", _speed_up),
        claim("MiMo", "idle share, naive", 0.693, "mimo baseline", lambda m: m.idle_ratio),
        claim("MiMo", "idle share, FIFO", 0.277, "mimo fifo", lambda m: m.idle_ratio),
        claim("MiMo", "waste, naive", 0.221, "mimo baseline", lambda m: m.waste_ratio),
        claim("MiMo", "waste, FIFO", 0.129, "mimo fifo", lambda m: m.waste_ratio),
    ]  # fmt: skip
    return rows


def run(case: Case) -> StepMeasure:
    training = TrainingRun(case.scenario, case.system)
    for _ in range(case.warmup):
        training.step()
    return mean_of([training.step() for _ in range(case.steps)])


def orders(means: dict[str, StepMeasure]) -> list[tuple[str, bool]]:
    """Qualitative claims."""
    copris_s = {size: means[f"1.5b copris {size}"].step_s for size in (512, 1024, 1536, 2048)}
    by_limit = [_speed_up(means[f"8b {k}k sync"], means[f"8b {k}k copris"]) for k in (8, 16, 24, 32, 40)]
    return [
        ("CoPRIS Table 2: of 512, 1024, 1536, 2048, the step is shortest at 1024", min(copris_s, key=copris_s.get) == 1024),
        ("CoPRIS Table 2: a step at 1536 and 2048 takes longer than at 1024",
         copris_s[1024] < copris_s[1536] < copris_s[2048]),
        ("CoPRIS Table 2: a rollout at 512 takes longer than at 1024",
         means["1.5b copris 512"].rollout_s > means["1.5b copris 1024"].rollout_s),
        ("CoPRIS Table 2: a rollout at 2048 takes longer than at 1024",
         means["1.5b copris 2048"].rollout_s > means["1.5b copris 1024"].rollout_s),
        ("CoPRIS Table 2: a step of naive partial rollout takes longer than CoPRIS at 1024",
         means["1.5b naive 1536"].step_s > copris_s[1024]),
        ("CoPRIS Table 2: log-prob time grows with concurrency",
         means["1.5b copris 512"].log_prob_s < means["1.5b copris 1024"].log_prob_s < means["1.5b copris 2048"].log_prob_s),
        ("CoPRIS Fig. 3a: the speed-up grows with the response limit, 8K to 40K", by_limit == sorted(by_limit)),
        ("MiMo: FIFO has less idle and less waste than naive dynamic sampling",
         means["mimo fifo"].idle_ratio < means["mimo baseline"].idle_ratio
         and means["mimo fifo"].waste_ratio < means["mimo baseline"].waste_ratio),
    ]  # fmt: skip


def table(results: Sequence[tuple[Claim, float]]) -> str:
    lines = ["| Source | What | Published | Simulated | Error |", "|---|---|---|---|---|"]
    for claim, value in results:
        error = value / claim.published - 1
        mark = "" if abs(error) <= 0.15 else " (miss)"
        lines.append(f"| {claim.source} | {claim.what} | {claim.published:g} | {value:.3g} | {100 * error:+.0f} %{mark} |")
    return "\n".join(lines)


def draw(results: Sequence[tuple[Claim, float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.27 * len(results) + 1.2), layout="constrained")
    axis = figure.subplots()
    names = [f"{claim.source}: {claim.what}" for claim, _ in results]
    errors = [100 * (value / claim.published - 1) for claim, value in results]
    axis.barh(names, errors, color=["#6cc5b0" if abs(error) <= 15 else "#ff725c" for error in errors])
    axis.axvspan(-15, 15, color="#6cc5b0", alpha=0.15)
    axis.axvline(0, color="black", lw=0.8)
    axis.invert_yaxis()
    axis.set_xlabel("simulated over published, error [%]; shaded: the target of 15 %")
    axis.tick_params(labelsize=8)
    figure.savefig(HERE / "validation.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    runs = cases()
    with ProcessPoolExecutor(max_workers=parser.parse_args().jobs) as pool:
        means = dict(zip(runs, pool.map(run, runs.values()), strict=True))
    results = [(claim, claim.value(*(means[name] for name in claim.cases))) for claim in claims()]
    with open(HERE / "validation.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "what", "published", "simulated", "error"])
        writer.writerows([c.source, c.what, c.published, f"{v:.4g}", f"{v / c.published - 1:.3f}"] for c, v in results)
    draw(results)
    print(table(results))
    for what, holds in orders(means):
        print(f"- {'holds' if holds else 'MISSED'}: {what}")


if __name__ == "__main__":
    main()
