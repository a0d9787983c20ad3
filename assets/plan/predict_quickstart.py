"""Calibrates the server model on one recorded quick start, and predicts the rollout seconds of the other strategies.

    python -m assets.plan.predict_quickstart --record outputs/strategies   reads runs of benchmarks/strategies.py anew
    python -m assets.plan.predict_quickstart                               predicts from the small files in this folder

Reads the calibration run's `quickstart_record.jsonl`, `quickstart_lengths.jsonl` (of the task's answers) and what the
other runs measured, `quickstart_measured.csv`; writes `quickstart_predicted.csv` and a table of README.md.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from recipe.async_dapo.plan.inputs import Inputs
from recipe.async_dapo.plan.measures import mean_of
from recipe.async_dapo.plan.systems import recipe
from recipe.async_dapo.plan.training_run import TrainingRun

from .validate import write_into_page

HERE = Path(__file__).parent
RECORD, LENGTHS = HERE / "quickstart_record.jsonl", HERE / "quickstart_lengths.jsonl"
MEASURED, PREDICTED = HERE / "quickstart_measured.csv", HERE / "quickstart_predicted.csv"
CALIBRATION_RUN = "discard-fifo-0"
REFERENCE = "discard-drain"
STRATEGIES = {
    "discard-drain": {"rollout_strategy": "discard", "stop_rule": "drain"},
    "discard-fifo": {"rollout_strategy": "discard", "stop_rule": "fifo"},
    "discard-first_completed": {"rollout_strategy": "discard", "stop_rule": "first_completed"},
    "partial": {"rollout_strategy": "partial"},
    "partial_stale_kv": {"rollout_strategy": "partial_stale_kv"},
    "consistent": {"rollout_strategy": "consistent"},
}
WARM_UP_STEPS = 3  # the engine's and the trainer's first calls are slow
TOK_PER_ADDITION = 7  # of the quick start's task: an answer's length belongs to its problem
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
    """Keep of the runs what the prediction needs."""
    import pyarrow.parquet

    rows = []
    for folder in sorted(path.parent for path in runs.glob("*/summary.json")):
        name, _, seed = folder.name.rpartition("-")
        if name not in STRATEGIES:
            continue
        seconds = [step["async_dapo/round/rollout_s"] for step in list(steps_of(folder))[WARM_UP_STEPS:]]
        rows.append({"strategy": name, "seed": seed, "rollout_s": round(mean(seconds), 4)})
    with MEASURED.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    steps = list(steps_of(runs / CALIBRATION_RUN))[WARM_UP_STEPS:]
    lines = [json.dumps({"data": {key: round(step[key], 5) for key in KEYS}}) for step in steps]
    RECORD.write_text("\n".join(lines) + "\n")
    problems = pyarrow.parquet.read_table(next(runs.glob("assets-*/train.parquet"))).to_pylist()
    lens_tok = [TOK_PER_ADDITION * problem["extra_info"]["additions"] for problem in problems[:2000]]
    LENGTHS.write_text("\n".join(map(str, lens_tok)) + "\n")


def predict() -> dict[str, float]:
    """Mean rollout seconds of a step, by strategy."""
    last = json.loads(RECORD.read_text().splitlines()[-1])["data"]
    trained, filtered = last["async_dapo/ledger/trained"], last["async_dapo/ledger/filtered"]
    scenario = Inputs.load(
        None,
        {
            "servers": 1,
            "max_num_seqs": 96,
            "train_batch_size": 8,
            "rollout_n": 8,
            "prompt_len_tok": 15,
            "max_response_length": 336,
            "lengths": str(LENGTHS),
            "length_correlation": 1.0,
            "valid_share": trained / (trained + filtered),
            "calibrate": str(RECORD),
        },
    ).scenario()
    seconds = {}
    for name, options in STRATEGIES.items():
        system = recipe(
            name, over_sampling_batch_size=32, max_concurrent_prompts=12, max_loads_per_server=96, **options
        ).with_overrides({"actor_rollout_ref.rollout.agent.num_workers": 1})
        run = TrainingRun(scenario, system)
        seconds[name] = mean_of([run.step() for _ in range(400)]).rollout_s
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="runs of benchmarks/strategies.py")
    options = parser.parse_args()
    if options.record is not None:
        record(options.record)
    measured: dict[str, list[float]] = {}
    for row in csv.DictReader(MEASURED.open(newline="")):
        measured.setdefault(row["strategy"], []).append(float(row["rollout_s"]))
    predicted = predict()
    lines = [
        f"| Strategy | Runs | Measured [s] | Predicted [s] | Measured / {REFERENCE} | Predicted | Error |",
        "|" + "---|" * 7,
    ]
    rows = []
    for name, runs in measured.items():
        ratios = mean(runs) / mean(measured[REFERENCE]), predicted[name] / predicted[REFERENCE]
        error = ratios[1] / ratios[0] - 1
        rows.append([name, len(runs), mean(runs), predicted[name], *ratios, error])
        mark = "" if abs(error) <= 0.15 else " (miss)"
        lines.append(
            f"| {name} | {len(runs)} | {mean(runs):.2f} | {predicted[name]:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} | "
            f"{100 * error:+.0f} %{mark} |"
        )
    with PREDICTED.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["strategy", "runs", "measured_s", "predicted_s", "measured_ratio", "predicted_ratio", "error"])
        writer.writerows([*row[:2], *(round(value, 4) for value in row[2:])] for row in rows)
    write_into_page("calibration", "\n".join(lines))


if __name__ == "__main__":
    main()
