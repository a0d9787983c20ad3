"""Training steps where the engines are the bottleneck, rehearsed: verl's modes, this recipe, and the bound.

python -m benchmarks.engine_bound --settings "8 servers, B=64, n=8, 16K" --steps 7

Every system runs its real code on emulated engines (docs/rehearsal.md), with the same prompts and responses. A row has
the planner's prediction for the same system beside it. Writes `runs.csv`, and goes on where it ends;
`python -m benchmarks.engine_bound.draw FOLDER` draws the figure and prints the table. The project's own runs are in
`assets/engine_bound`.
"""

import argparse
from functools import partial
from pathlib import Path

from hydra import compose, initialize_config_dir

from benchmarks.engine_bound.systems import SETTINGS, Row, Setting, planned_step_s, rows
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.plan.scenario import Scenario
from recipe.async_dapo.plan.systems import DEFAULTS_FILE
from recipe.async_dapo.rehearsal.emulation import use_stand_in
from recipe.async_dapo.rehearsal.options import RehearsalOptions
from recipe.async_dapo.rehearsal.supervisor import rehearse


def scenario_of(setting: Setting, folder: Path) -> Scenario:
    """What the rehearsals of a setting emulate."""
    overrides = [*setting.overrides(), f"rehearsal.output='{folder / 'run'}'"]
    with initialize_config_dir(str(DEFAULTS_FILE.parent), version_base=None):
        config = compose("async_dapo_trainer", overrides=overrides)
    options = RehearsalOptions.from_hydra(config)
    use_stand_in(config, options)
    return options.scenario(config)


def measure(
    setting: Setting, row: Row, scenario: Scenario, folder: Path, *, steps: int, warmup: int, speedup: float
) -> dict[str, float | str]:
    """One system's columns; times are virtual seconds."""
    rehearsal = rehearse(
        [
            *setting.overrides(),
            *row.overrides,
            f"rehearsal.speedup={speedup}",
            f"rehearsal.steps={steps}",
            f"rehearsal.warmup={warmup}",
            f"rehearsal.output='{folder}'",
        ]
    )
    mean, validity = rehearsal.mean, rehearsal.validity
    return {
        "steps": steps - warmup,
        "step_s": round(mean.step_s, 2),
        "rollout_s": round(mean.rollout_s, 2),
        "idle": round(mean.idle, 3),
        "tok_per_s_per_gpu": round(mean.tokens_per_s_per_gpu, 1),
        "bound_s": round(rehearsal.bound.step_s, 2),
        "bound_share": round(mean.bound_share, 3),
        "waste": round(mean.waste, 4),
        "off_policy": "" if mean.off_policy is None else round(mean.off_policy, 4),
        "staleness": round(mean.staleness, 3),
        "length_bias": round(mean.length_bias, 3),
        "planned_step_s": round(planned_step_s(scenario, row), 2),
        "engine_late_share": round(validity.engine_late_share, 5),
        "trainer_late_share": round(validity.trainer_late_share, 5),
        "cpu_share": round(validity.cpu_share, 3),
        "is_valid": str(validity.is_valid),
        "wall_s": round(rehearsal.wall_s),
        "peak_memory_gb": round(rehearsal.peak_memory_bytes / 1e9, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--systems", nargs="+", help="default: all")
    parser.add_argument("--speedups", type=float, nargs="+", help="default: the setting's own")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("outputs", "engine_bound"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "engine_bound"), help="folder of the runs' logs")
    options = parser.parse_args()
    runs, logs = RunsFile(options.output / "runs.csv"), options.runs.absolute()
    for repetition in range(options.repetitions):
        for setting in (SETTINGS[name] for name in options.settings):
            scenario = scenario_of(setting, logs)
            table = rows(scenario)
            for name in options.systems or list(table):
                for speedup in options.speedups or [setting.speedup]:
                    cell = {"setting": setting.name, "system": name, "speedup": speedup, "repetition": repetition}
                    run = partial(measure, setting, table[name], scenario, logs / runs.folder_name(cell))
                    runs.measure(cell, partial(run, steps=options.steps, warmup=options.warmup, speedup=speedup))


if __name__ == "__main__":
    main()
