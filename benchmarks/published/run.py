"""Published results by rehearsal: the systems of papers as this recipe's code and verl's run them, on emulated engines.

python -m benchmarks.published --what "R1-1.5B, 16 A800: step, sync / CoPRIS"

Clusters, models and tasks are those that the planner is validated with (`benchmarks.plan.validate`). A paper's baseline
is verl's sync mode, its own system this recipe with the paper's options. Two habits of theirs no option has: CoPRIS
recomputes log-probs of its whole buffer in every step, for which the planner's seconds are added (`scored_s`); APRIL
throws surplus groups away. Writes `runs.csv`, a row a system, and goes on where it ends. The project's own runs are in
`assets/published`.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.plan.published_settings import Case, cases
from benchmarks.plan.published_settings import run as plan
from benchmarks.published.summary import SPEEDUPS, chosen
from benchmarks.support.rehearsed import measure, overrides_of, verl_overrides
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.core.leases import server_calls
from recipe.async_dapo_lab.plan.systems import Habits, Refill

POLL_S = 0.05  # of verl's sync mode: the baselines did not poll
SLOW_WARMUP, SLOW_STEPS = 1, 5  # nothing is kept over a step
FAST_WARMUP, FAST_STEPS = 8, 8  # until as many trajectories of every length end as begin


def is_baseline(case: Case) -> bool:
    """Whether every step generates whole batches, and awaits them: what verl's sync mode does where all are valid."""
    return case.system.habits.refill in (Refill.NEXT_BATCH, Refill.PER_FILTERED)


def system_overrides(case: Case) -> Iterator[str]:
    """The system of a case, as an option of verl's, or of this recipe."""
    if is_baseline(case):
        yield from verl_overrides("sync", poll_s=POLL_S)
        return
    given = dict(case.system.overrides)
    most = {
        "async_dapo.max_loads_per_server": server_calls(case.scenario.max_num_seqs) - 1,
        "async_dapo.max_concurrent_prompts": given["async_dapo.over_sampling_batch_size"],
    }
    for key, value in given.items():
        value = min(value, most[key]) if key in most else value
        yield f"{key}={'null' if value is None else value}"


def scored_s(case: Case) -> float:
    """Seconds of a step for log-probs of the buffer, as planned [virtual s]."""
    if not case.system.habits.scores_buffer:
        return 0.0
    without = replace(case, system=replace(case.system, habits=Habits()))
    return plan(case).log_prob_s - plan(without).log_prob_s


def run(case: Case, folder: Path, *, speedup: float) -> dict[str, float | str]:
    """One system's columns."""
    slow = is_baseline(case)
    warmup, steps = (SLOW_WARMUP, SLOW_STEPS) if slow else (FAST_WARMUP, FAST_STEPS)
    overrides = [*overrides_of(case.scenario), *system_overrides(case)]
    columns = measure(overrides, folder, steps=warmup + steps, warmup=warmup, speedup=speedup)
    return columns | {"speedup": speedup, "scored_s": round(scored_s(case), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=SPEEDUPS, default=list(SPEEDUPS))
    parser.add_argument("--speedup", type=float, help="default: each claim's own")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("outputs", "published"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "published"), help="folder of the runs' logs")
    options = parser.parse_args()
    runs, logs, known = RunsFile(options.output / "runs.csv"), options.runs.absolute(), cases()
    for repetition in range(options.repetitions):
        for claim in sorted(chosen(), key=lambda one: list(SPEEDUPS).index(one.what)):
            for name in claim.cases if claim.what in options.what else ():
                cell = {"case": name, "repetition": repetition}
                speedup = options.speedup or SPEEDUPS[claim.what]
                runs.measure(cell, partial(run, known[name], logs / runs.folder_name(cell), speedup=speedup))
