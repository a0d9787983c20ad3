"""What simulating a step costs, by the number of servers: python -m benchmarks.plan.scale

Writes scale.csv and scale.png: the mean of two steps on one core, and the memory, at 195 trajectories per server and
step.
"""

import math
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

import pandas as pd

from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import recipe

from .summary import FOLDER

SERVERS = (8, 16, 32, 64, 128, 256, 512)
MOST = {"servers": 512, "groups": 6250, "in_flight": 512 * 128}  # 100,000 trajectories of a step, at n = 16


def measure(servers: int) -> dict[str, float]:
    """One size: the mean of two steps."""
    share = servers / MOST["servers"]
    groups, in_flight = round(share * MOST["groups"]), round(share * MOST["in_flight"])
    scenario = Inputs.load(None, {"servers": servers, "train_batch_size": groups, "valid_share": 1.0}).scenario()
    system = recipe(
        "partial",
        rollout_strategy="partial",
        stop_rule="first_completed",
        rollout_pool_size=in_flight,
        over_sampling_batch_size=groups + in_flight // 16,
    )
    run = TrainingRun(scenario, system)
    started = time.process_time()
    steps = [run.step(), run.step()]
    return {
        "servers": servers,
        "trajectories": steps[0].trained_trajectories,
        "events": sum(step.events for step in steps) / len(steps),
        "cpu_s_per_step": round((time.process_time() - started) / len(steps), 3),
        "memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3),
    }


def draw(rows: pd.DataFrame) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    events, seconds, largest = rows["events"], rows["cpu_s_per_step"], rows.iloc[-1]
    axis.loglog(events, seconds, "o-", color="#4269d0", label="measured")
    scale = statistics.geometric_mean(s / (n * math.log(n)) for n, s in zip(events, seconds, strict=True))
    axis.loglog(events, [scale * n * math.log(n) for n in events], "--", color="#9c9c9c", label="n log n")
    axis.set_xlabel("events of a step")
    axis.set_ylabel("seconds of one core")
    title = "{servers:.0f} servers, {trajectories:.0f} trajectories: {cpu_s_per_step:.0f} s a step"
    axis.set_title(title.format(**largest))
    axis.legend()
    axis.grid(alpha=0.3)
    figure.savefig(FOLDER / "scale.png", dpi=120)


def main() -> None:
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=1) as pool:  # a process each, for its memory
        rows = pd.DataFrame(pool.map(measure, SERVERS))
    rows.to_csv(FOLDER / "scale.csv", index=False)
    draw(rows)


if __name__ == "__main__":
    main()
