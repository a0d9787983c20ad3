"""The same training job through verl's own trainer modes and through this recipe: real Ray, vLLM, FSDP2; one run.

python -m benchmarks.side_by_side --steps 20 --repetitions 3 --output assets/side_by_side

Model, data, seeds, B, n, engine options and precision are the same in every row; rows are interleaved, repetition by
repetition. Writes `runs.csv`. Runs that are in the file already are not repeated; delete it to start over.
"""

import argparse
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs_file import RunsFile
from recipe.async_dapo.cpu.activation import run_environment
from recipe.async_dapo.cpu.assets import Assets, prepare_assets
from recipe.async_dapo.cpu.overrides import (
    PROMPTS_PER_STEP,
    RESPONSES_PER_PROMPT,
    RunSettings,
    recipe_overrides,
    verl_overrides,
)
from recipe.async_dapo.cpu.run_metrics import ACCURACY, STEP_S, RunMetrics
from recipe.async_dapo.cpu.supervision import RayFolder, TrainingProcess

ROOT = Path(__file__).resolve().parents[1]
WARM_UP_STEPS = 3
TRAJECTORIES_PER_STEP = PROMPTS_PER_STEP * RESPONSES_PER_PROMPT

VERL, RECIPE = "verl.trainer.main_ppo", "recipe.async_dapo.main_async_dapo"
# What this recipe's configuration sets by default, for verl's own entry.
DAPO = (
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean",
    "++algorithm.filter_groups.enable=True",
    "++algorithm.filter_groups.metric=acc",
)
COLOCATE_ASYNC = ("trainer.v1.trainer_mode=colocate_async", *DAPO)
FAST_POLL = (
    f"++trainer.v1.sampler.custom_sampler.path={Path(__file__).with_name('fast_poll.py')}",
    "++trainer.v1.sampler.custom_sampler.name=FastPollReplayBuffer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    module: str
    overrides: tuple[str, ...]


SYSTEMS = {
    "verl sync": System(module=VERL, overrides=("trainer.v1.trainer_mode=sync", *DAPO)),
    "verl colocate_async": System(module=VERL, overrides=COLOCATE_ASYNC),
    "verl colocate_async, 0.05 s poll": System(module=VERL, overrides=(*COLOCATE_ASYNC, *FAST_POLL)),
    "discard, fifo": System(module=RECIPE, overrides=tuple(recipe_overrides(strategy="discard", stop_rule="fifo"))),
    "partial": System(module=RECIPE, overrides=tuple(recipe_overrides(strategy="partial", stop_rule=None))),
    "partial_stale_kv": System(
        module=RECIPE, overrides=tuple(recipe_overrides(strategy="partial_stale_kv", stop_rule=None))
    ),
}


def train(system: System, assets: Assets, folder: Path, *, steps: int, seed: int) -> RunMetrics:
    """One run, from its start.

    Raises:
        RuntimeError: when training fails; the log is in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = RunMetrics(file=folder / "metrics.jsonl")
    metrics.file.unlink(missing_ok=True)
    with RayFolder() as ray_folder:
        settings = RunSettings(assets=assets, output=folder, ray_folder=ray_folder.path, steps=steps, seed=seed)
        command = [sys.executable, "-m", system.module, *verl_overrides(settings), *system.overrides]
        environment = run_environment(os.environ, code_path=ROOT, output=folder)
        process = TrainingProcess(command, environment=environment, log_file=folder / "train.log")
        with process:
            while process.exit_code is None:
                process.watch(1.0)
    if process.exit_code != 0:
        raise RuntimeError(f"exit code {process.exit_code}; see {folder / 'train.log'}")
    metrics.read_new()
    return metrics


def figures(metrics: RunMetrics) -> dict[str, float]:
    """Medians over the steps after the warm-up; accuracies of the first and the last validation."""
    steps = metrics.steps[WARM_UP_STEPS:]
    accuracies = [accuracy for _, accuracy in metrics.series(ACCURACY)]
    trained_tok = [step["response_length/mean"] * TRAJECTORIES_PER_STEP for step in steps]
    return {
        "step_s": round(statistics.median(step[STEP_S] for step in steps), 3),
        "step_s_mean": round(statistics.mean(step[STEP_S] for step in steps), 3),
        "rollout_s": round(statistics.median(step["timing_s/gen"] for step in steps), 3),
        "trained_tok_per_s": round(sum(trained_tok) / sum(step[STEP_S] for step in steps), 1),
        "accuracy_before": accuracies[0],
        "accuracy_after": accuracies[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--output", type=Path, default=Path("assets", "side_by_side"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "side_by_side"), help="folder of the runs' logs")
    options = parser.parse_args()
    runs = RunsFile(options.output / "runs.csv")
    assets = prepare_assets(options.runs.absolute(), seed=0)
    for repetition in range(options.repetitions):
        for name in options.systems:
            if runs.has(system=name, repetition=repetition):
                continue
            folder = options.runs.absolute() / f"{name.replace(', ', '-').replace(' ', '_')}-{repetition}"
            metrics = train(SYSTEMS[name], assets, folder, steps=options.steps, seed=repetition)
            row = {"system": name, "repetition": repetition, "steps": options.steps, **figures(metrics)}
            runs.add(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
