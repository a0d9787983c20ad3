"""How well a policy learns from older tokens: reinforcement learning of a tiny model under the production scheduler.

python -m benchmarks.learning                                              # all rows of all tasks, for days
python -m benchmarks.learning --tasks addition --rows on-policy "partial/4/*" --seeds 0 1
python -m benchmarks.learning --tasks "tail 8" --rows on-policy --rate-factors 0.5 1 2 --seeds 100

Writes `runs.csv`, one row a run, and `curves.csv`, a line of each validated step. What is in the file is not run
again, any number of these commands may run at once, and one that is killed loses no row that has ended.
"""

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch

from benchmarks.support.needed import need
from benchmarks.support.runs_file import RunsFile, claim
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.command_line import path

from . import rows
from .model import TinyTransformer, sample
from .rows import Row, usual_steps
from .schedule import SampledRun, reward
from .tasks import TASKS, Task, held_out, to_tokens
from .training import Learner, compose_run
from .warm_start import fingerprint, warm_model

_EXERCISES = 512
LATE = 3  # validations, of which `accuracy` is the mean
_AGES = ("staleness_mean", "off_policy", "k3_kl", "k3_of_1")
MEASURED = (*_AGES, "ess_ratio", "entropy", "clipped", "gradient", "length")
WARM = Path("outputs", "learning", "warm")


def every(steps: int) -> int:
    """Steps between two validations of a run: a tenth of it, but ten at most."""
    return min(steps // 10, 10) or 1


def accuracy(model: TinyTransformer, task: Task, seed: int) -> float:
    """Of held-out exercises, sampled at temperature 1."""
    exercises = held_out(task.name, _EXERCISES)
    contexts = [to_tokens(one.prompt) for one in exercises]
    generator = torch.Generator().manual_seed(seed)
    answers = sample(model, contexts, [task.limit_tok] * len(contexts), generator)
    return fmean(reward(one, answer.tokens) for one, answer in zip(exercises, answers, strict=True))


def train(row: Row, model: TinyTransformer) -> Iterator[dict[str, float]]:
    """The measures of every step, with the accuracy where it was validated; ends early where a step's groups are hardly
    ever valid any more.
    """
    learner = Learner(model, compose_run(row.overrides))
    run = SampledRun(row, model)
    for step in range(1, row.steps + 1):
        try:
            done = run.step()
        except ConfigError:  # `max_num_gen_batches`
            return
        measures = {"step": step, "valid": done.valid_groups / max(1, done.valid_groups + done.filtered_groups)}
        measures |= learner.update(run.trained, step=step)
        if step % every(row.steps) == 0 or step == row.steps:
            measures["accuracy"] = accuracy(model, row.shape, seed=step)
        yield measures


def figures(row: Row, *, curves: Path) -> dict[str, Any]:
    """One run's columns, and its curves. A run that ends early is judged by the model that it leaves."""
    began_s = time.process_time()
    model = warm_model(row.shape, row.seed, WARM)
    model.compile_parts()
    before, warm_s = round(accuracy(model, row.shape, seed=0), 4), time.process_time() - began_s
    start = {"start": fingerprint(model), "accuracy_before": before}
    measured = list(train(row, model))
    late = LATE
    if measured and len(measured) < row.steps:
        measured[-1]["accuracy"], late = accuracy(model, row.shape, seed=row.steps), 1
    validated = [one for one in measured if "accuracy" in one]
    _write_curves(asdict(row) | start, validated, curves)
    ages = sorted({name for one in measured for name in one if name.startswith("k3_of_")}, key=lambda n: int(n[6:]))
    quarters = [[one for one in measured if q < 4 * one["step"] / row.steps <= q + 1] for q in range(2)]
    return {
        **start,
        "accuracy": round(fmean(one["accuracy"] for one in validated[-late:]) if validated else before, 4),
        "steps_done": len(measured),
        "staleness_max": int(max((one["staleness_max"] for one in measured), default=0)),
        **{name: _mean(measured, name) for name in MEASURED},
        "k3_by_age": " ".join(f"{name[6:]}:{_mean(measured, name)}" for name in ages),
        **{f"k3_quarter_{q}": _mean(quarter, "k3_kl") for q, quarter in enumerate(quarters, start=1)},
        "cpu_s": round(time.process_time() - began_s - warm_s, 1),
    }


def _mean(measured: list[dict[str, float]], name: str) -> str:
    """Over the steps that have it."""
    values = [one[name] for one in measured if name in one]
    return f"{fmean(values):.4g}" if values else ""


def _write_curves(cell: dict[str, Any], validated: list[dict[str, float]], file: Path) -> None:
    """Append the measures of the validated steps, each the step's own."""
    cell = {name: str(value) for name, value in cell.items()}
    columns = [*cell, "step", "accuracy", "reward", "valid", *MEASURED, "ratio_max"]
    lines = pd.DataFrame([cell | one for one in validated], columns=columns)
    with claim(file):
        lines.to_csv(file, mode="a", header=not file.exists(), index=False, float_format="%.4g")


def main(arguments: Sequence[str] | None = None) -> None:
    known = rows.named_rows()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--rows", nargs="+", default=["*"], help=f"patterns of names, such as {', '.join(known)[:80]}..."
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rate-factors", type=float, nargs="+", default=[1.0], help="times the task's learning rate")
    parser.add_argument("--updates", type=int, nargs="+", default=[1], choices=(1, 2, 4, 8, 16), help="of a step")
    parser.add_argument("--steps", type=int, help="of a run; by default the task's, fewer at higher rates")
    parser.add_argument("--output", type=path, default=Path("outputs", "learning"))
    options = parser.parse_args(arguments)
    wanted = [name for name in known if any(fnmatch(name, pattern) for pattern in options.rows)]
    if not wanted:
        parser.error(f"--rows {shlex.join(options.rows)}: no such row; there are {', '.join(known)}")
    if any(known[name]["correction"] == "mixture" for name in wanted):
        need("mixture")
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options.output.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "benchmarks.learning", *(sys.argv[1:] if arguments is None else arguments)])
    for task, seed, factor, updates, name in product(
        options.tasks, options.seeds, options.rate_factors, options.updates, wanted
    ):
        steps = options.steps or usual_steps(TASKS[task], rate_factor=factor, updates=updates)
        row = Row(task=task, **known[name], rate_factor=factor, updates=updates, steps=steps, seed=seed)
        _run(row, options.output, command)


def claim_name(row: Row) -> str:
    return RunsFile.folder_name(asdict(row)).replace("/", "_")


def _run(row: Row, output: Path, command: str) -> None:
    """Add a row to the file, unless it is there or another process is at it."""
    cell = asdict(row) | {"learning_rate": row.rate_factor * row.shape.learning_rate}
    with claim(output / "claims" / claim_name(row), waits=False) as is_ours:
        if is_ours:
            runs = RunsFile(output / "runs.csv")
            runs.measure(cell, lambda: figures(row, curves=output / "curves.csv") | {"command": command})
