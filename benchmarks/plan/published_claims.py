"""Published numbers, and how to read each off simulated runs."""

from collections.abc import Callable
from dataclasses import dataclass

from recipe.async_dapo_lab.plan.measures import StepMeasure

OPTIMUM = "1.5b copris 1024"
TABLE_2 = {  # run -> seconds of a step, of its rollout, of its log-probs
    "1.5b copris 512": (139.08, 97.44, 15.96),
    "1.5b copris 1024": (123.12, 75.43, 22.15),
    "1.5b copris 1536": (144.0, 88.15, 29.21),
    "1.5b copris 2048": (161.06, 95.44, 37.30),
    "1.5b naive 1536": (126.81, 77.09, 23.79),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One published number, and how to read it off simulated runs."""

    source: str
    what: str
    published: float
    cases: tuple[str, ...]
    value: Callable[..., float]


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
    for name, (step_s, rollout_s, log_prob_s) in TABLE_2.items():
        setting = name.removeprefix("1.5b copris ").removeprefix("1.5b ")
        if name != OPTIMUM:
            rows.append(claim(table_2, f"{setting}: step, over that at 1024", round(step_s / TABLE_2[OPTIMUM][0], 3),
                              f"{name}, {OPTIMUM}", _speed_up))  # fmt: skip
        rows.append(claim(table_2, f"{setting}: step [s]", step_s, name, lambda m: m.step_s))
        rows.append(claim(table_2, f"{setting}: rollout [s], fitted", rollout_s, name, lambda m: m.rollout_s))
        rows.append(claim(table_2, f"{setting}: log-probs [s]", log_prob_s, name, lambda m: m.log_prob_s))
    for data, gain in (("DAPO-Math-17k", 1.17), ("DeepScaleR", 1.21), ("DeepMath-103K", 1.35)):
        rows.append(claim("APRIL", f"Qwen3-4B, {data}: rollout throughput", gain, "april, april baseline",
                          lambda a, b: a.rollout_tokens_per_s_per_gpu / b.rollout_tokens_per_s_per_gpu))  # fmt: skip
    rows += [
        claim("APRIL", "off-policy share of tokens", 0.40, "april", lambda m: m.off_policy_ratio),
        claim("async DAPO 2025", "rollout time, over the baseline's", 0.80, "async dapo, async dapo baseline",
              lambda a, b: a.rollout_s / b.rollout_s),
        claim("async DAPO 2025", "throughput, over the baseline's", 1.15, "async dapo, async dapo baseline",
              lambda a, b: a.tokens_per_s_per_gpu / b.tokens_per_s_per_gpu),
        claim("MiMo", "rollout, naive / FIFO", 2.61, "mimo baseline, mimo fifo",
              lambda a, b: a.rollout_s / b.rollout_s),
        claim("MiMo", "step, naive / FIFO", 2.29, "mimo baseline, mimo fifo", _speed_up),
        claim("MiMo", "idle share, naive", 0.693, "mimo baseline", lambda m: m.idle_ratio),
        claim("MiMo", "idle share, FIFO", 0.277, "mimo fifo", lambda m: m.idle_ratio),
        claim("MiMo", "waste, naive", 0.221, "mimo baseline", lambda m: m.waste_ratio),
        claim("MiMo", "waste, FIFO", 0.129, "mimo fifo", lambda m: m.waste_ratio),
    ]  # fmt: skip
    return rows


def orders(means: dict[str, StepMeasure]) -> list[tuple[str, bool]]:
    """Qualitative claims."""
    copris_s = {size: means[f"1.5b copris {size}"].step_s for size in (512, 1024, 1536, 2048)}
    log_prob_s = [means[f"1.5b copris {size}"].log_prob_s for size in copris_s]
    by_limit = [_speed_up(means[f"8b {k}k sync"], means[f"8b {k}k copris"]) for k in (8, 16, 24, 32, 40)]
    return [
        ("CoPRIS Table 2: of 512, 1024, 1536, 2048, the step is shortest at 1024",
         min(copris_s, key=lambda size: copris_s[size]) == 1024),
        ("CoPRIS Table 2: a step at 1536 and 2048 takes longer than at 1024",
         copris_s[1024] < copris_s[1536] < copris_s[2048]),
        ("CoPRIS Table 2: a rollout at 512 takes longer than at 1024",
         means["1.5b copris 512"].rollout_s > means["1.5b copris 1024"].rollout_s),
        ("CoPRIS Table 2: a rollout at 2048 takes longer than at 1024",
         means["1.5b copris 2048"].rollout_s > means["1.5b copris 1024"].rollout_s),
        ("CoPRIS Table 2: a step of naive partial rollout takes longer than CoPRIS at 1024",
         means["1.5b naive 1536"].step_s > copris_s[1024]),
        ("CoPRIS Table 2: log-prob time grows with concurrency",
         log_prob_s == sorted(log_prob_s)),
        ("CoPRIS Fig. 3a: the speed-up grows with the response limit, 8K to 40K", by_limit == sorted(by_limit)),
        ("MiMo: FIFO has less idle and less waste than naive dynamic sampling",
         means["mimo fifo"].idle_ratio < means["mimo baseline"].idle_ratio
         and means["mimo fifo"].waste_ratio < means["mimo baseline"].waste_ratio),
    ]  # fmt: skip
