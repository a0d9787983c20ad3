"""The quick start with each strategy and several seeds, interleaved in one run: what each costs, and what it learns.

python -m benchmarks.strategies --seeds 0 1 2 --output assets/strategies

Writes `runs.csv`, one row a run. Runs that are in the file already are not repeated, so that it can be interrupted;
delete the file to start over.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.runs_file import RunsFile
from recipe.async_dapo.cpu.overrides import PROMPTS_PER_STEP
from recipe.async_dapo.cpu.run_metrics import STEP_S, RunMetrics

ROWS: dict[str, tuple[str, ...]] = {
    "discard, first_completed": ("--strategy", "discard", "--stop-rule", "first_completed"),
    "discard, fifo": ("--strategy", "discard", "--stop-rule", "fifo"),
    "discard, drain": ("--strategy", "discard", "--stop-rule", "drain"),
    # As verl's sync mode refills: B prompts at a time, each batch awaited whole.
    "discard, drain, B prompts at a time": (
        *("--strategy", "discard", "--stop-rule", "drain"),
        *("--", f"async_dapo.over_sampling_batch_size={PROMPTS_PER_STEP}"),
    ),
    "partial": ("--strategy", "partial"),
    "partial_stale_kv": ("--strategy", "partial_stale_kv"),
    "consistent": ("--strategy", "consistent"),
}
WARM_UP_STEPS = 3  # the engine's and the trainer's first calls are slow


def run(name: str, seed: int, folder: Path, *, steps: int) -> dict[str, float | str | int]:
    """One training run. Returns its row of the table.

    Raises:
        subprocess.CalledProcessError: when the run fails; its log is in `folder`.
    """
    command = [sys.executable, "-m", "recipe.async_dapo.cpu.quickstart", "--steps", str(steps), "--seed", str(seed)]
    subprocess.run([*command, "--output", str(folder), *ROWS[name]], check=True)
    summary = json.loads((folder / "summary.json").read_text())
    metrics = RunMetrics(file=folder / "metrics.jsonl")
    metrics.read_new()
    return {"strategy": name, "seed": seed, "steps": steps, **figures(summary, metrics.steps)}


def figures(summary: dict, steps: list[dict[str, float]]) -> dict[str, float]:
    """Times are medians over the steps after the warm-up; tokens are sums over all steps."""
    warm = steps[WARM_UP_STEPS:]
    total = {name: sum(step[f"async_dapo/tokens/{name}"] for step in steps) for name in ("trained", "discarded")}
    return {
        "accuracy_before": summary["accuracy_before"],
        "accuracy_after": summary["accuracy_after"],
        "rollout_s": round(statistics.median(step["async_dapo/round/rollout_s"] for step in warm), 3),
        "rollout_s_mean": round(statistics.mean(step["async_dapo/round/rollout_s"] for step in warm), 3),
        "step_s": round(statistics.median(step[STEP_S] for step in warm), 3),
        "waste": round(total["discarded"] / (total["discarded"] + total["trained"]), 4),
        "trained_to_dispatched": round(steps[-1]["async_dapo/length/trained_to_dispatched"], 4),
        "off_policy": round(statistics.mean(step["async_dapo/partial/off_policy_token_ratio"] for step in steps), 4),
        "reprefilled_tok": sum(step["async_dapo/partial/reprefilled_tokens"] for step in steps),
        "idle": round(statistics.mean(step["async_dapo/load_balancer/idle_ratio"] for step in warm), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--output", type=Path, default=Path("assets", "strategies"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "strategies"), help="folder of the runs' logs")
    options = parser.parse_args()
    runs = RunsFile(options.output / "runs.csv")
    for seed in options.seeds:
        for name in options.rows:
            if not runs.has(strategy=name, seed=seed):
                folder = options.runs / f"{name.replace(', ', '-')}-{seed}"
                runs.add(run(name, seed, folder.absolute(), steps=options.steps))


if __name__ == "__main__":
    main()
