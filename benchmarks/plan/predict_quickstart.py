"""Calibrates the server model on one recorded quick start, and predicts the rollout seconds of the other strategies.

    python -m benchmarks.plan.predict_quickstart --record outputs/strategies   takes runs of benchmarks.strategies
    python -m benchmarks.plan.predict_quickstart                               predicts from the small files of assets/

Reads the calibration run's `quickstart_record.jsonl`, `quickstart_lengths.jsonl` (of the task's answers) and what all
runs measured, `../strategies/runs.csv`; writes `quickstart_predicted.csv` and a table of README.md.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import WARM_UP_STEPS
from recipe.async_dapo.cpu.overrides import (
    CONCURRENT_PROMPTS,
    OVER_SAMPLING,
    PROMPTS_PER_STEP,
    REQUESTS_IN_FLIGHT,
    RESPONSES_PER_PROMPT,
)
from recipe.async_dapo.cpu.task import MAX_PROMPT_TOK, QUICK_START, TOK_PER_ADDITION
from recipe.async_dapo.plan.inputs import Inputs
from recipe.async_dapo.plan.measures import mean_of
from recipe.async_dapo.plan.simulated_training import TrainingRun
from recipe.async_dapo.plan.systems import recipe

from .validate import write_into_page

HERE = Path(__file__).parents[2] / "assets" / "plan"
RECORD, LENGTHS = HERE / "quickstart_record.jsonl", HERE / "quickstart_lengths.jsonl"
MEASURED, PREDICTED = HERE.parent / "strategies" / "runs.csv", HERE / "quickstart_predicted.csv"
CALIBRATION_RUN = {"task": "quick start", "strategy": "discard, fifo", "seed": 0}
REFERENCE = "discard, drain"
STRATEGIES = {
    "discard, drain": {"rollout_strategy": "discard", "stop_rule": "drain"},
    "discard, fifo": {"rollout_strategy": "discard", "stop_rule": "fifo"},
    "discard, first_completed": {"rollout_strategy": "discard", "stop_rule": "first_completed"},
    "partial": {"rollout_strategy": "partial"},
    "partial_stale_kv": {"rollout_strategy": "partial_stale_kv"},
    "consistent": {"rollout_strategy": "consistent"},
}
KEYS = (
    "timing_s/step",
    "async_dapo/round/rollout_s",
    "async_dapo/tokens/trained",
    "async_dapo/tokens/filtered",
    "async_dapo/tokens/discarded",
    "async_dapo/partial/buffer_tokens",
    "async_dapo/load_balancer/inflight/max",
    "async_dapo/load_balancer/idle_ratio",
    "async_dapo/load_balancer/requests",
    "async_dapo/ledger/trained",
    "async_dapo/ledger/filtered",
)


def steps_of(folder: Path) -> Iterator[dict[str, float]]:
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        data = json.loads(line)["data"]
        if "timing_s/step" in data:
            yield data


def record(runs: Path) -> None:
    """Keep of the calibration run and its task what the prediction needs."""
    import pyarrow.parquet

    steps = list(steps_of(runs / RunsFile.folder_name(CALIBRATION_RUN)))[WARM_UP_STEPS:]
    lines = [json.dumps({"data": {key: round(step[key], 5) for key in KEYS}}) for step in steps]
    RECORD.write_text("\n".join(lines) + "\n")
    problems = pyarrow.parquet.read_table(next(runs.glob("assets-*/train.parquet"))).to_pylist()
    lens_tok = [TOK_PER_ADDITION * problem["extra_info"]["additions"] for problem in problems[:2000]]
    LENGTHS.write_text("\n".join(map(str, lens_tok)) + "\n")


def measured() -> dict[str, list[float]]:
    """Mean rollout seconds of a step of every run, by strategy."""
    seconds: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for row in csv.DictReader(MEASURED.open(newline="")):
        if row["task"] == CALIBRATION_RUN["task"] and row["strategy"] in seconds:
            seconds[row["strategy"]].append(float(row["rollout_s_mean"]))
    return seconds


def predict() -> dict[str, float]:
    """Mean rollout seconds of a step, by strategy."""
    last = json.loads(RECORD.read_text().splitlines()[-1])["data"]
    trained, filtered = last["async_dapo/ledger/trained"], last["async_dapo/ledger/filtered"]
    scenario = Inputs.load(
        None,
        {
            "servers": 1,
            "max_num_seqs": REQUESTS_IN_FLIGHT,
            "train_batch_size": PROMPTS_PER_STEP,
            "rollout_n": RESPONSES_PER_PROMPT,
            "prompt_len_tok": MAX_PROMPT_TOK,
            "max_response_length": QUICK_START.max_response_tok,
            "lengths": str(LENGTHS),
            "length_correlation": 1.0,
            "valid_share": trained / (trained + filtered),
            "calibrate": str(RECORD),
        },
    ).scenario()
    seconds = {}
    for name, options in STRATEGIES.items():
        system = recipe(
            name,
            over_sampling_batch_size=OVER_SAMPLING * PROMPTS_PER_STEP,
            max_concurrent_prompts=CONCURRENT_PROMPTS,
            max_loads_per_server=REQUESTS_IN_FLIGHT,
            **options,
        ).with_overrides({"actor_rollout_ref.rollout.agent.num_workers": 1})
        run = TrainingRun(scenario, system)
        seconds[name] = mean_of([run.step() for _ in range(400)]).rollout_s
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="runs of benchmarks.strategies")
    options = parser.parse_args()
    if options.record is not None:
        record(options.record)
    measured_s, predicted_s = measured(), predict()
    lines = [
        f"| Strategy | Runs | Measured [s] | Predicted [s] | Measured / {REFERENCE} | Predicted | Error |",
        "|" + "---|" * 7,
    ]
    rows: list[list[Any]] = []
    for name, runs in measured_s.items():
        ratios = mean(runs) / mean(measured_s[REFERENCE]), predicted_s[name] / predicted_s[REFERENCE]
        error = ratios[1] / ratios[0] - 1
        rows.append([name, len(runs), mean(runs), predicted_s[name], *ratios, error])
        mark = "" if abs(error) <= 0.15 else " (miss)"
        seconds = f"{mean(runs):.2f} | {predicted_s[name]:.2f}"
        lines.append(
            f"| {name} | {len(runs)} | {seconds} | {ratios[0]:.2f} | {ratios[1]:.2f} | {100 * error:+.0f} %{mark} |"
        )
    with PREDICTED.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["strategy", "runs", "measured_s", "predicted_s", "measured_ratio", "predicted_ratio", "error"])
        writer.writerows([*row[:2], *(round(value, 4) for value in row[2:])] for row in rows)
    write_into_page("calibration", "\n".join(lines))


if __name__ == "__main__":
    main()
