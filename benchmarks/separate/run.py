"""Rows of `runs.csv`: splits of a setting's GPUs between trainer and engines. All of it is simulated.

New weights take as long for verl's separate_async here as for this recipe: their bytes over the stated link, which is
less than the seconds that `assets/defaults` takes for putting engines to sleep and back. Both train a batch in four
parts, each as soon as it is there. `full` has up to four batches on their way, however old they become. At equal share
the fastest split has as many groups on their way (`over_sampling_batch_size`, in fifths of a batch) as keep the
off-policy share at another system's, or below.
"""

from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.defaults.draw import read_systems
from benchmarks.defaults.run import COLOCATE, equal_share
from benchmarks.defaults.settings import Setting
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.candidates import Candidate, separate_splits
from recipe.async_dapo_lab.plan.measures import StepMeasure, mean_of
from recipe.async_dapo_lab.plan.rolling_training import RollingRun
from recipe.async_dapo_lab.plan.sweep import simulate
from recipe.async_dapo_lab.plan.systems import System, recipe_separate

LARGEST = 64  # servers
TRAJECTORIES = 6_000  # that a mean is taken over, in whole steps
SPOT_WARMUP, SPOT_STEPS = 6, 10
MOST = 4  # batches on their way
HOLDS = tuple(tenths / 10 for tenths in range(10, 32, 2))  # batches on their way, of which 0.6 are valid
VERL, OURS = "verl separate_async", "separate"
FULL, CONSISTENT = "separate, full", "separate, consistent"
SPOT = "separate, a new engine each step"
AT_VERLS, AT_COLOCATE = "separate, at separate_async's share", "separate, at colocate_async's share"


def run(folder: Path, setting: Setting) -> None:
    """Simulate what the file does not have yet."""
    file, verls = RunsFile(folder / "runs.csv"), separate_splits(setting.scenario())
    parts, splits = verls[0].habits.parts, [one.habits.trainer_servers for one in verls]

    def key(system: str, trains: int) -> dict[str, Any]:
        return {"setting": str(setting), "system": system, "trains": trains}

    def fastest(system: str) -> dict[str, Any]:
        return min((key(system, trains) for trains in splits), key=partial(_per_batch_s, file))

    def ours(trains: int, **options: Any) -> System:
        return recipe_separate(trainer_servers=trains, servers=setting.servers, parts=parts, **options)

    for one in verls:
        file.measure(key(VERL, one.habits.trainer_servers), partial(_measure, setting, one))
    for trains in splits:
        file.measure(key(OURS, trains), partial(_measure, setting, ours(trains)))
    best = fastest(OURS)["trains"]
    options: dict[str, dict[str, Any]] = {
        FULL: {"over_sampling_batch_size": MOST * setting.groups},
        CONSISTENT: {"rollout_strategy": "consistent"},
    }
    for name, some in options.items():
        file.measure(key(name, best), partial(_measure, setting, ours(best, **some)))
    if best < setting.servers - 1:  # one engine alone cannot be replaced
        file.measure(key(SPOT, best), partial(_measure_spot, setting, ours(best)))
    default = file.row(**key(OURS, best)).to_dict()
    default = {name: default[name] for name in default.keys() - key(OURS, best).keys() - {"commit"}}
    default["off_policy"] = float(default["off_policy"])

    def with_hold(hold: float | None) -> dict[str, Any]:
        if hold is None:
            return default
        return _measure(setting, ours(best, over_sampling_batch_size=int(hold * setting.groups))) | {"hold": hold}

    shares = {AT_VERLS: float(file.row(**fastest(VERL))["off_policy"]), AT_COLOCATE: _share_of_colocate(setting)}
    for name, share in shares.items():
        file.measure(key(name, best), partial(equal_share, with_hold, share=share, caps=HOLDS))


def _share_of_colocate(setting: Setting) -> float:
    systems = read_systems().set_index(["setting", "system"])
    return float(systems.loc[(str(setting), COLOCATE), "off_policy"])


def _per_batch_s(file: RunsFile, key: dict[str, Any]) -> float:
    """Of natural length; nothing is withheld."""
    row = file.row(**key)
    return float(row["step_s"]) / float(row["length_bias"])


def _measure(setting: Setting, system: System) -> dict[str, Any]:
    scenario = setting.scenario()
    candidate = Candidate(system=system, strategy="partial", stop_rule="first_completed", concurrency=None)
    steps = max(4, ceil(TRAJECTORIES / (setting.groups * setting.n)))
    scenario = replace(scenario, update_s=scenario.transfer_s)
    return _row(*simulate(scenario, candidate, steps=steps, warmup=None))


def _measure_spot(setting: Setting, system: System) -> dict[str, Any]:
    """After every step the engine that has been there longest dies, and another one joins."""
    run, steps = RollingRun(setting.scenario(), system), []
    for number in range(SPOT_WARMUP + SPOT_STEPS):
        steps.append(run.step())
        run.lose(run.server_ids[0])
        run.gain(f"joined-{number}")
    return _row(mean_of(steps[SPOT_WARMUP:]), run.natural_len_tok)


def _row(mean: StepMeasure, natural_len_tok: float) -> dict[str, Any]:
    return {
        "hold": "",
        "step_s": round(mean.step_s, 2),
        "rollout_s": round(mean.rollout_s, 2),
        "log_prob_s": round(mean.log_prob_s, 2),
        "train_s": round(mean.train_s, 2),
        "off_policy": round(mean.off_policy_ratio, 4),
        "staleness_mean": round(mean.staleness_mean, 3),
        "staleness_max": mean.staleness_max,
        "length_bias": round(mean.trained_len_tok / natural_len_tok, 4),
        "prefill": round(mean.prefill_ratio, 4),
        "refused": "",
    }
