"""What the corrections for older versions are worth: exactly, on a model small enough to enumerate, and in training.

python -m benchmarks.corrections                                     # exact: exact.csv, exact.png in assets/corrections
python -m benchmarks.corrections --learn --seeds 0 1 2 --pool 192    # trainings, the quick start's task
python -m benchmarks.corrections --learn --seeds 0 1 2 --pool 192 --task "tail 25"

Trainings write `runs.csv`, one row a run, and go on where it ends. `--pool` forces staleness up: so many trajectories
are unfinished at once, of which a step trains 64; the mean staleness that comes of it is a column.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.corrections import exact
from benchmarks.corrections.summary import learning_table
from benchmarks.strategies.run import TASKS
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import RECIPE, WARM_UP_STEPS, train
from benchmarks.support.tables import markdown
from recipe.async_dapo.cpu.model_and_data import Assets, prepare_assets
from recipe.async_dapo.cpu.overrides import recipe_overrides
from recipe.async_dapo.cpu.run_metrics import ACCURACY, STEP_S, RunMetrics

CORRECTIONS = ("none", "bypass", "decoupled", "balance")
STRATEGIES = ("partial", "partial_stale_kv", "consistent")
ON_POLICY = "on-policy"
MAX_STALENESS = 16  # so that the pool decides


def overrides(strategy: str, correction: str, pool: int) -> list[str]:
    """Of one row; on-policy data need no correction, and no pool."""
    if strategy == ON_POLICY:
        on_policy = recipe_overrides(strategy="discard", stop_rule="drain")
        return [*on_policy, "async_dapo.max_staleness=0", "async_dapo.importance_sampling=none"]
    return [
        *recipe_overrides(strategy=strategy, stop_rule=None),
        f"async_dapo.importance_sampling={correction}",
        "async_dapo.snapshot_dtype=float32",
        f"async_dapo.rollout_pool_size={pool}",
        f"async_dapo.max_staleness={MAX_STALENESS}",
    ]


def figures(metrics: RunMetrics) -> dict[str, object]:
    """Seconds are medians over the steps after the warm-up; the others are means over these steps."""
    warm = metrics.steps[WARM_UP_STEPS:]
    means = {
        "staleness": "async_dapo/staleness/mean",
        "ess_ratio": "async_dapo/importance/overall/ess_ratio",
        "mixture_share": "async_dapo/mixture/token_share",
        "log_probs_s": "async_dapo/mixture/log_probs_s",
        "keep_s": "async_dapo/mixture/keep_s",
        "snapshot_bytes": "async_dapo/mixture/snapshot_bytes",
    }
    validations = list(metrics.series(ACCURACY))
    known = {name: key for name, key in means.items() if key in warm[-1]}
    return {
        "accuracy_after": validations[-1][1],
        "validations": " ".join(f"{second:.1f}:{accuracy:.4f}" for second, accuracy in validations),
        "step_s": round(statistics.median(step[STEP_S] for step in warm), 3),
        **{
            name: round(statistics.mean(step[known[name]] for step in warm), 4) if name in known else ""
            for name in means
        },
    }


def run(entry: list[str], assets: Assets, folder: Path, steps: int, seed: int) -> dict[str, object]:
    """One run's columns."""
    metrics, _ = train(entry, assets, folder, steps=steps, seed=seed)
    return figures(metrics)


def learn(options: argparse.Namespace) -> None:
    """Strategies and corrections interleaved, seed by seed."""
    runs = RunsFile(options.output / "runs.csv")
    cells = [(ON_POLICY, "none"), *((s, c) for s in options.strategies for c in options.corrections)]
    for seed in options.seeds:
        assets = prepare_assets(options.output.absolute(), seed=seed, shape=TASKS[options.task])
        for strategy, correction in cells:
            pool = 0 if strategy == ON_POLICY else options.pool
            cell = {"task": options.task, "strategy": strategy, "correction": correction, "pool": pool, "seed": seed}
            entry = [RECIPE, *overrides(strategy, correction, pool), f"trainer.test_freq={options.test_freq}"]
            folder = options.output.absolute() / runs.folder_name(cell)
            runs.measure(cell | {"steps": options.steps}, partial(run, entry, assets, folder, options.steps, seed))
    print(markdown(learning_table(pd.read_csv(options.output / "runs.csv"))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learn", action="store_true", help="train, instead of the exact part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", choices=TASKS, default="quick start")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--test-freq", type=int, default=10, help="steps between two validations")
    parser.add_argument("--pool", type=int, default=192, help="trajectories unfinished at once")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=list(CORRECTIONS))
    parser.add_argument("--output", type=Path, default=Path("outputs", "corrections"))
    options = parser.parse_args()
    if options.learn:
        learn(options)
    else:
        exact.write()
