"""The recipe with each strategy and several seeds, interleaved in one run: what each costs, and what it learns.

python -m benchmarks.strategies --seeds 0 1 2 --overrides async_dapo.importance_sampling=none  # quick start's task
python -m benchmarks.strategies --seeds 0 1 2 --task "tail 25" --steps 30

Writes `runs.csv`, one row a run, and goes on where it ends. The project's own runs are in `assets/strategies`.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import RECIPE, TAILS, WARM_UP_STEPS, train
from recipe.async_dapo.record.keys import STEP_S
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP, recipe_overrides
from recipe.async_dapo_lab.quickstart.run_metrics import ACCURACY, RunMetrics
from recipe.async_dapo_lab.quickstart.task import QUICK_START

TASKS = {"quick start": QUICK_START} | {f"tail {tail}": shape for tail, shape in TAILS.items()}
ROWS: dict[str, list[str]] = {
    "discard, first_completed": [*recipe_overrides(strategy="discard", stop_rule="first_completed")],
    "discard, fifo": [*recipe_overrides(strategy="discard", stop_rule="fifo")],
    "discard, drain": [*recipe_overrides(strategy="discard", stop_rule="drain")],
    # As verl's sync mode refills: B prompts at a time, each batch awaited whole.
    "discard, drain, B prompts at a time": [
        *recipe_overrides(strategy="discard", stop_rule="drain"),
        f"async_dapo.over_sampling_batch_size={PROMPTS_PER_STEP}",
    ],
    "partial": [*recipe_overrides(strategy="partial", stop_rule=None)],
    "partial_stale_kv": [*recipe_overrides(strategy="partial_stale_kv", stop_rule=None)],
    "consistent": [*recipe_overrides(strategy="consistent", stop_rule=None)],
}


def figures(metrics: RunMetrics) -> dict[str, float]:
    """Times are medians over the steps after the warm-up; tokens are sums over all steps."""
    steps = metrics.steps
    warm = steps[WARM_UP_STEPS:]
    accuracies = [accuracy for _, accuracy in metrics.series(ACCURACY)]
    total = {name: sum(step[f"async_dapo/tokens/{name}"] for step in steps) for name in ("trained", "discarded")}
    return {
        "accuracy_before": accuracies[0],
        "accuracy_after": accuracies[-1],
        "rollout_s": round(statistics.median(step["async_dapo/round/rollout_s"] for step in warm), 3),
        "rollout_s_mean": round(statistics.mean(step["async_dapo/round/rollout_s"] for step in warm), 3),
        "step_s": round(statistics.median(step[STEP_S] for step in warm), 3),
        "waste": round(total["discarded"] / (total["discarded"] + total["trained"]), 4),
        "trained_to_dispatched": round(steps[-1]["async_dapo/length/trained_to_dispatched"], 4),
        "off_policy": round(statistics.mean(step["async_dapo/partial/off_policy_token_ratio"] for step in steps), 4),
        "reprefilled_tok": sum(step["async_dapo/partial/reprefilled_tokens"] for step in steps),
        "idle": round(statistics.mean(step["async_dapo/load_balancer/idle_ratio"] for step in warm), 3),
    }


def run(entry: list[str], assets: Assets, folder: Path, steps: int, seed: int) -> dict[str, float]:
    """One run's columns."""
    metrics, _ = train(entry, assets, folder, steps=steps, seed=seed)
    return figures(metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", choices=TASKS, default="quick start")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--overrides", nargs="+", default=[], help="further Hydra overrides of every row")
    parser.add_argument("--output", type=Path, default=Path("outputs", "strategies"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "strategies"), help="folder of the runs' logs")
    options = parser.parse_args()
    runs = RunsFile(options.output / "runs.csv")
    for seed in options.seeds:
        # A seed has its own model and data; what is compared is the strategies on the same ones.
        assets = prepare_assets(options.runs.absolute(), seed=seed, shape=TASKS[options.task])
        for name in options.rows:
            cell = {"task": options.task, "strategy": name, "seed": seed}
            setting = {"steps": options.steps, "overrides": " ".join(options.overrides)}
            folder = options.runs.absolute() / runs.folder_name(cell)
            entry = [RECIPE, *ROWS[name], *options.overrides]
            runs.measure(cell | setting, partial(run, entry, assets, folder, options.steps, seed))
