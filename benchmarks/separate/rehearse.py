"""A rehearsal of engines on GPUs of their own beside what the planner says of it.

python -m benchmarks.separate.rehearse [--speedup 4] [--steps 12] [--strategies partial consistent]

Adds a row a strategy to `rehearsed.csv`: the real trainer, load balancer, workers and Ray on emulated engines, in
virtual seconds, over the planner's mean step of the same setting. Needs a machine of its own; a row says whether the
rehearsal may be believed.
"""

import argparse
from pathlib import Path

from benchmarks.support.rehearsed import measure, overrides_of
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.hardware import find_accelerator, load_model
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.measures import mean_of
from recipe.async_dapo_lab.plan.rolling_training import RollingRun
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.systems import recipe_separate
from recipe.async_dapo_lab.plan.workload import ValidShare

TRAINS = 1  # of the setting's GPUs
SETTING = "3 x H200, one of them trains, B=16, n=8, 4K, median 1.2K, sigma 0.9"


def scenario() -> Scenario:
    return Scenario(
        model=load_model("qwen3-8b"),
        accelerator=find_accelerator("h200"),
        num_servers=3,
        train_batch_size=16,
        rollout_n=8,
        max_response_length=4096,
        lengths=LogNormalLengths(median_tok=1200, sigma=0.9, correlation=0.5),
        pass_rates=ValidShare(share=0.6),
    )


def planned_s(strategy: str, *, steps: int, warmup: int) -> float:
    """Mean step of the planner."""
    setting = scenario()
    system = recipe_separate(trainer_servers=TRAINS, servers=setting.num_servers, parts=1, rollout_strategy=strategy)
    run = RollingRun(setting, system)
    return mean_of([run.step() for _ in range(steps)][warmup:]).step_s


def overrides(strategy: str) -> list[str]:
    engines = scenario().num_servers - TRAINS
    return [
        *overrides_of(scenario()),
        f"trainer.n_gpus_per_node={TRAINS}",
        "actor_rollout_ref.rollout.nnodes=1",
        f"actor_rollout_ref.rollout.n_gpus_per_node={engines}",
        "async_dapo.placement=separate",
        f"async_dapo.rollout_strategy={strategy}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["partial", "consistent"])
    parser.add_argument("--speedup", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("outputs", "separate"))
    options = parser.parse_args()
    rows = RunsFile(options.output / "rehearsed.csv")
    steps, warmup = options.steps, options.warmup
    for strategy in options.strategies:
        planned = planned_s(strategy, steps=steps, warmup=warmup)
        folder = options.output.absolute() / strategy
        row = measure(overrides(strategy), folder, steps=steps, warmup=warmup, speedup=options.speedup)
        ratio = round(float(row["step_s"]) / planned, 3)
        rows.add({"setting": SETTING, "strategy": strategy, "planned_s": round(planned, 2), "ratio": ratio, **row})
        print(f"{strategy}: rehearsed {row['step_s']} s, planned {planned:.2f} s, ratio {ratio}")


if __name__ == "__main__":
    main()
