"""What the corrections for older versions are worth: exactly, on a model small enough to enumerate, and in training.

python -m benchmarks.corrections                                     # exact: exact.csv, exact.png in assets/corrections
python -m benchmarks.corrections --learn --seeds 0 1 2 --pool 640    # trainings, the quick start's task
python -m benchmarks.corrections --learn --seeds 0 1 2 --pool 640 --task "tail 25"

Trainings write `runs.csv`, one row a run, and go on where it ends. `--pool` forces staleness up: so many trajectories
are unfinished at once, of which a step trains 32; the mean staleness that comes of it is a column.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.corrections import exact
from benchmarks.corrections.summary import ON_POLICY, PROMPTS_PER_STEP, learning_table
from benchmarks.strategies.run import TASKS
from benchmarks.support import learning_curve
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import RECIPE, RunLoad, quiet_steps, train
from benchmarks.support.tables import markdown
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import (
    QUICK_LEARNING_RATE,
    QUICK_STEPS,
    REQUESTS_IN_FLIGHT,
    RESPONSES_PER_PROMPT,
    recipe_overrides,
)
from recipe.async_dapo_lab.quickstart.run_metrics import ACCURACY, RunMetrics

CORRECTIONS = ("none", "bypass", "decoupled", "balance")
STRATEGIES = (ON_POLICY, "partial", "partial_stale_kv", "consistent")
MAX_STALENESS = 16  # so that the pool decides
LATE = 3  # validations, of which an accuracy is the mean


def overrides(strategy: str, correction: str, pool: int) -> list[str]:
    """Of one row; on-policy data need no correction, and no pool."""
    if strategy == ON_POLICY:
        on_policy = recipe_overrides(strategy="discard", stop_rule="drain")
        return [*on_policy, "async_dapo.max_staleness=0", "async_dapo.importance_sampling=none"]
    return [
        *recipe_overrides(strategy=strategy, stop_rule=None),
        f"async_dapo.importance_sampling={correction}",
        f"async_dapo.rollout_pool_size={pool}",
        f"async_dapo.over_sampling_batch_size={2 * PROMPTS_PER_STEP + -(-pool // RESPONSES_PER_PROMPT)}",
        f"async_dapo.max_staleness={MAX_STALENESS}",
        f"actor_rollout_ref.rollout.max_num_seqs={max(pool, REQUESTS_IN_FLIGHT)}",  # all of the pool advances
    ]


def figures(metrics: RunMetrics, load: RunLoad) -> dict[str, object]:
    """Means over the second half, when the pool is in its steady state; of CPU seconds the median, over steps after the
    warm-up without a validation."""
    steady = metrics.steps[len(metrics.steps) // 2 :]
    means = {
        "staleness": "async_dapo/staleness/mean",
        "ess_ratio": "async_dapo/importance/overall/ess_ratio",
        "k3_kl": "async_dapo/importance/overall/k3_kl",
        "mixture_share": "async_dapo/mixture/token_share",
        "scored_again": "async_dapo/mixture/scored_trajectories",
        "snapshot_bytes": "async_dapo/mixture/snapshot_bytes",
        "length_tok": "response_length/mean",
    }
    known = {name: key for name, key in means.items() if key in steady[-1]}
    validations = list(metrics.series(ACCURACY))
    return {
        "accuracy_after": validations[-1][1],
        "accuracy_late": round(statistics.mean(accuracy for _, accuracy in validations[-LATE:]), 4),
        "validations": learning_curve.written(validations),
        "cpu_s": round(statistics.median(load.step_cpu_s(quiet_steps(metrics))), 3),
        **{
            name: round(statistics.mean(step[known[name]] for step in steady), 4) if name in known else ""
            for name in means
        },
    }


def run(entry: list[str], assets: Assets, folder: Path, steps: int, seed: int) -> dict[str, object]:
    """One run's columns."""
    return figures(*train(entry, assets, folder, steps=steps, seed=seed))


def learn(options: argparse.Namespace) -> None:
    """Strategies and corrections interleaved, seed by seed."""
    runs = RunsFile(options.output / "runs.csv")
    cells = [(s, c) for s in options.strategies for c in (("none",) if s == ON_POLICY else options.corrections)]
    every_row = [
        f"trainer.test_freq={options.test_freq}",
        f"data.train_batch_size={PROMPTS_PER_STEP}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS_PER_STEP}",
        f"actor_rollout_ref.actor.optim.lr={options.learning_rate}",
    ]
    for seed in options.seeds:
        assets = prepare_assets(options.output.absolute(), seed=seed, shape=TASKS[options.task])
        for strategy, correction in cells:
            pool = 0 if strategy == ON_POLICY else options.pool
            cell = {"task": options.task, "strategy": strategy, "correction": correction, "pool": pool, "seed": seed}
            setting = {"steps": options.steps, "learning_rate": options.learning_rate, "machine": options.machine}
            entry = [RECIPE, *overrides(strategy, correction, pool), *every_row]
            folder = options.output.absolute() / runs.folder_name(cell)
            runs.measure(cell | setting, partial(run, entry, assets, folder, options.steps, seed))
    print(markdown(learning_table(pd.read_csv(options.output / "runs.csv"))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learn", action="store_true", help="train, instead of the exact part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", choices=TASKS, default="quick start")
    parser.add_argument("--steps", type=int, default=QUICK_STEPS)
    parser.add_argument("--learning-rate", type=float, default=QUICK_LEARNING_RATE)
    parser.add_argument("--test-freq", type=int, default=4, help="steps between two validations")
    parser.add_argument("--pool", type=int, default=192, help="trajectories unfinished at once")
    parser.add_argument("--machine", type=int, default=1, help="which of the file's: a seed's model differs by machine")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=list(CORRECTIONS))
    parser.add_argument("--output", type=Path, default=Path("outputs", "corrections"))
    options = parser.parse_args()
    if options.learn:
        learn(options)
    else:
        exact.write()
