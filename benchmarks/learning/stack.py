"""Rows of the laboratory on the real stack: python -m benchmarks.learning.stack

The quick start's task and model, trained by the recipe's own trainer with Ray, vLLM and FSDP2 on this machine's CPU,
with the options of the laboratory's rows. Writes `stack.csv`, and goes on where it ends, unless its rows are of another
model.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import fmean

import pandas as pd

from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import RECIPE, train
from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, fingerprint, prepare_assets
from recipe.async_dapo_lab.quickstart.run_metrics import ACCURACY
from recipe.async_dapo_lab.quickstart.task import MAX_PROMPT_TOK

from .rows import ON_POLICY, Row, named_rows, usual_steps
from .tasks import QUICK_TASK, TASKS

ROWS = (ON_POLICY, "partial/1/decoupled", "partial/3/decoupled")
_MEANS = {"staleness_mean": "async_dapo/staleness/mean", "k3_kl": "async_dapo/importance/overall/k3_kl"}


def figures(row: Row, assets: Assets, folder: Path) -> dict[str, object]:
    """One run's columns; accuracies are those before the first step and after the last."""
    entry = [
        RECIPE,
        *row.overrides,
        f"data.max_prompt_length={MAX_PROMPT_TOK}",
        f"actor_rollout_ref.rollout.max_num_seqs={row.places}",
        f"trainer.test_freq={row.steps}",
    ]
    metrics, _ = train(entry, assets, folder, steps=row.steps, seed=row.seed)
    accuracy = [accuracy for _, accuracy in metrics.series(ACCURACY)]
    means = {name: [step[key] for step in metrics.steps if key in step] for name, key in _MEANS.items()}
    return {
        "accuracy_before": round(accuracy[0], 4),
        "accuracy": round(accuracy[-1], 4),
        **{name: f"{fmean(values):.4g}" if values else "0" for name, values in means.items()},
    }


def check_same_model(file: Path, model: str) -> None:
    """
    Raises:
        SystemExit: if the file has rows of another model, or from before models were noted.
    """
    rows = pd.read_csv(file, dtype=str) if file.exists() else pd.DataFrame({"model": []})
    if "model" not in rows or set(rows["model"]) - {model}:
        sys.exit(f"{file} has rows of another model of the quick start's; name another folder with --output")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=path, default=Path("outputs", "learning"))
    options = parser.parse_args()
    file, output, model = options.output / "stack.csv", options.output.absolute(), fingerprint(seed=0)
    check_same_model(file, model)
    runs = RunsFile(file)
    steps, known = usual_steps(TASKS[QUICK_TASK], rate_factor=1.0, updates=1), named_rows()
    for seed in options.seeds:
        assets = prepare_assets(output / "stack", seed=seed)
        for name in options.rows:
            row = Row(task=QUICK_TASK, **known[name], rate_factor=1.0, updates=1, steps=steps, seed=seed)
            cell = {"staleness": row.staleness, "seed": seed, "steps": steps, "model": model}
            folder = output / "stack" / f"{row.staleness}-{seed}"
            runs.measure(cell, partial(figures, row, assets, folder))


if __name__ == "__main__":
    main()
