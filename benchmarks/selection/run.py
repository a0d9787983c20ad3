"""What prompts chosen by history save, and what the model learns meanwhile: real runs, interleaved.

python -m benchmarks.selection --seeds 0 1 2                              # quick start's task
python -m benchmarks.selection --seeds 0 1 2 --task "tail 25"
python -m benchmarks.selection --seeds 0 1 2 --prompts 96 --steps 18      # a data set that is visited again and again

Writes `runs.csv`, one row a run, and `visits.csv`, how often prompts were answered in it.
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.strategies.run import TASKS
from benchmarks.support import learning_curve
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import RECIPE, WARM_UP_STEPS, RunLoad, quiet_steps, train
from recipe.async_dapo.record.history import load_history
from recipe.async_dapo.record.keys import STEP_S
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP, recipe_overrides
from recipe.async_dapo_lab.quickstart.run_metrics import ACCURACY, RunMetrics

START_STEPS = 15
ROWS: dict[str, list[str]] = {
    "without": [],
    "history": ["async_dapo.selection.by=history"],
}
GENERATED = ("trained", "discarded", "filtered")
PASS_RATES = [0.0, 0.05, 0.2, 0.8, 0.95, 1.0]


def generated_tok(steps: Sequence[dict[str, float]]) -> float:
    """Tokens generated in a run's first steps, what is in the buffer included."""
    if not steps:
        return 0.0
    ended = sum(step[f"async_dapo/tokens/{name}"] for step in steps for name in GENERATED)
    return ended + steps[-1]["async_dapo/partial/buffer_tokens"]


def generated_per_group(steps: Sequence[dict[str, float]]) -> float:
    """The same over groups trained."""
    return generated_tok(steps) / (PROMPTS_PER_STEP * len(steps))


def figures(metrics: RunMetrics, load: RunLoad) -> dict[str, float | str]:
    """Times are medians over the steps after the warm-up; CPU seconds, which other work on the machine does not change,
    over those without a validation: of the engines, and of all processes."""
    steps, quiet = metrics.steps, quiet_steps(metrics)
    warm, last = steps[WARM_UP_STEPS:], steps[-len(steps) // 3 :]
    ledger, accuracies = steps[-1], [accuracy for _, accuracy in metrics.series(ACCURACY)]
    return {
        "accuracy_before": accuracies[0],
        "accuracy_after": accuracies[-1],
        "tok_per_group_start": round(generated_per_group(steps[:START_STEPS]), 1),
        "tok_per_group": round(generated_per_group(steps), 1),
        "validations": learning_curve.written(
            (generated_tok(steps[:step]), accuracy) for step, accuracy in metrics.series(ACCURACY)
        ),
        "validations_cpu": learning_curve.written(
            (load.cpu_s_until(step), accuracy) for step, accuracy in metrics.series(ACCURACY)
        ),
        "rollout_s": round(statistics.median(step["async_dapo/round/rollout_s"] for step in warm), 3),
        "step_s": round(statistics.median(step[STEP_S] for step in warm), 3),
        "engine_cpu_s": round(statistics.median(load.step_engines_cpu_s(quiet)), 3),
        "cpu_s": round(statistics.median(load.step_cpu_s(quiet)), 3),
        "drawn": ledger["async_dapo/ledger/drawn"],
        "filtered": ledger["async_dapo/ledger/filtered"],
        "filtered_per_trained_last_third": round(
            sum(step["async_dapo/filter/rejected_groups"] for step in last) / (PROMPTS_PER_STEP * len(last)), 3
        ),
    }


def visits(file: str) -> pd.DataFrame:
    """How often prompts were answered, by the pass rate that their history has."""
    counts = load_history(file).prompts.values()
    seen = pd.DataFrame({"rate": [c.right / (c.right + c.wrong) for c in counts], "visits": [c.visits for c in counts]})
    names = [f"{above:g} to {most:g}" for above, most in pairwise(PASS_RATES)]
    rates = pd.cut(seen["rate"], PASS_RATES, labels=names, include_lowest=True)
    groups = seen.groupby(rates, observed=False)["visits"]
    return groups.agg(["count", "mean", "min"]).reset_index()


def run(cell: dict[str, Any], assets: Assets, folder: Path, options: argparse.Namespace) -> dict[str, float | str]:
    """One run's columns; its prompts' visits are added to their file."""
    history = folder / "history.json"
    history.unlink(missing_ok=True)
    entry = [
        RECIPE,
        *recipe_overrides(strategy="partial", stop_rule=None),
        *ROWS[cell["row"]],
        f"async_dapo.selection.history_file={history}",
        f"trainer.save_freq={options.steps}",
        f"trainer.test_freq={options.test_every}",
        *([] if options.prompts is None else [f"data.train_max_samples={options.prompts}"]),
        *options.overrides,
    ]
    metrics, load = train(entry, assets, folder, steps=options.steps, seed=cell["seed"])
    file = options.output / "visits.csv"
    rows = visits(str(history)).assign(**cell)
    rows.to_csv(file, mode="a", header=not file.exists(), index=False)
    return figures(metrics, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--task", choices=TASKS, default="quick start")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--test-every", type=int, default=5, help="steps between two validations, 3 or more")
    parser.add_argument("--prompts", type=int, help="size of the data set; all of the task's by default")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--overrides", nargs="+", default=[], help="further Hydra overrides of every row")
    parser.add_argument("--output", type=Path, default=Path("outputs", "selection"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "selection"), help="folder of the runs' logs")
    options = parser.parse_args()
    if options.test_every < 3:
        parser.error(f"--test-every={options.test_every}: must be >= 3, for steps that no validation is in or before")
    runs = RunsFile(options.output / "runs.csv")
    for seed in options.seeds:
        assets = prepare_assets(options.runs.absolute(), seed=seed, shape=TASKS[options.task])
        for name in options.rows:
            prompts = "all" if options.prompts is None else options.prompts
            cell = {"task": options.task, "prompts": prompts, "row": name, "seed": seed}
            setting = {"steps": options.steps, "overrides": " ".join(options.overrides)}
            folder = options.runs.absolute() / runs.folder_name(cell)
            runs.measure(cell | setting, partial(run, cell, assets, folder, options))
