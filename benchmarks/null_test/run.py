"""Does a rehearsal say what was measured? The side by side on vLLM's CPU backend, rehearsed with its own costs.

    python -m benchmarks.side_by_side --tails 8 25 --systems "discard, fifo" --repetitions 1    calibration runs
    python -m benchmarks.null_test --record outputs/side_by_side                                keeps what it needs
    python -m benchmarks.null_test --beside 0                                                   rehearses

Engines get the decode step, the admission and the training seconds of one real run of a tail (`discard, fifo`), and the
lengths of its task. The engine, the trainer and all that is rehearsed share two cores in the real run, whereas a
rehearsal should not feel its own Python: time is stretched here (speed-up below 1). Writes `runs.csv`, and goes on
where it ends. The records and the project's own runs are in `assets/null_test`.
"""

import argparse
from functools import partial
from pathlib import Path

from benchmarks.null_test.summary import FOLDER
from benchmarks.support.recorded_run import keep_lengths, keep_record, valid_share
from benchmarks.support.rehearsed import batch_overrides, measure, verl_overrides
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import TAILS
from recipe.async_dapo_lab.quickstart.model_and_data import prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import (
    PROMPTS_PER_STEP,
    REQUESTS_IN_FLIGHT,
    RESPONSES_PER_PROMPT,
    recipe_overrides,
)

CALIBRATION_SYSTEM = "discard, fifo"
UPDATE_S = 0.1  # of the seconds beside a rollout: new weights for the engine
SYSTEMS = {
    "verl sync": verl_overrides("sync", poll_s=2.0),
    "verl colocate_async": verl_overrides("colocate_async", poll_s=2.0),
    "verl colocate_async, 0.05 s poll": verl_overrides("colocate_async", poll_s=0.05),
    CALIBRATION_SYSTEM: tuple(recipe_overrides(strategy="discard", stop_rule="fifo")),
    "partial": tuple(recipe_overrides(strategy="partial", stop_rule=None)),
    "partial_stale_kv": tuple(recipe_overrides(strategy="partial_stale_kv", stop_rule=None)),
}


def record_of(tail: int) -> Path:
    return FOLDER / f"record-{tail}.jsonl"


def lengths_of(tail: int) -> Path:
    return FOLDER / f"lengths-{tail}.jsonl"


def keep(runs: Path, tail: int) -> None:
    """The record and the lengths of a tail, of the side by side's runs."""
    run = {"tail": tail, "engines": 1, "system": CALIBRATION_SYSTEM, "repetition": 0}
    keep_record(runs / RunsFile.folder_name(run), record_of(tail))
    keep_lengths(prepare_assets(runs.absolute(), seed=0, shape=TAILS[tail]).train_file, lengths_of(tail))


def task(tail: int) -> list[str]:
    """One engine and the task of a tail, as they were recorded."""
    rollout = "actor_rollout_ref.rollout"
    return [
        f"rehearsal.calibrate='{record_of(tail)}'",
        f"rehearsal.lengths='{lengths_of(tail)}'",
        "rehearsal.length_correlation=1.0",
        f"rehearsal.valid_share={valid_share(record_of(tail))}",
        f"rehearsal.update_s={UPDATE_S}",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.max_num_seqs={REQUESTS_IN_FLIGHT}",
        f"{rollout}.free_cache_engine=False",
        f"{rollout}.agent.num_workers=1",
        *batch_overrides(
            gpus=1, groups=PROMPTS_PER_STEP, n=RESPONSES_PER_PROMPT, limit_tok=TAILS[tail].max_response_tok
        ),
    ]


def rehearse(tail: int, name: str, folder: Path, options: argparse.Namespace) -> dict[str, float | str]:
    """One run's columns."""
    times = {"steps": options.steps, "warmup": options.warmup, "speedup": options.speedup}
    return {"beside": options.beside} | measure([*task(tail), *SYSTEMS[name]], folder, **times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="runs of benchmarks.side_by_side; keeps, no more")
    parser.add_argument("--tails", type=int, nargs="+", choices=TAILS, default=[8, 25])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--speedup", type=float, default=0.5)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--beside", type=int, default=0, help="repetition of the side by side on the recorded machine")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs", "null_test"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "null_test"), help="folder of the runs' logs")
    options = parser.parse_args()
    if options.record is not None:
        for tail in options.tails:
            keep(options.record, tail)
        return
    runs, logs = RunsFile(options.output / "runs.csv"), options.runs.absolute()
    for repetition in range(options.repetitions):
        for tail in options.tails:
            for name in options.systems:
                cell = {"tail": tail, "system": name, "repetition": repetition, "speedup": f"{options.speedup:g}"}
                runs.measure(cell, partial(rehearse, tail, name, logs / runs.folder_name(cell), options))
