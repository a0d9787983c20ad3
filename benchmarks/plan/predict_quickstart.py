"""Calibrates the server model on one recorded quick start, and predicts the rollout seconds of the other strategies.

    python -m benchmarks.plan.predict_quickstart --record outputs/strategies   takes runs of benchmarks.strategies
    python -m benchmarks.plan.predict_quickstart                               predicts from the small files of assets/

Reads the calibration run's `quickstart_record.jsonl`, `quickstart_lengths.jsonl` (of the task's answers) and what all
runs measured, `../strategies/runs.csv`; writes `quickstart_predicted.csv`, of which `python -m docs.generate` makes a
table.
"""

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.support.recorded_run import keep_lengths, keep_record, valid_share
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.measures import mean_of
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import recipe
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP, REQUESTS_IN_FLIGHT, RESPONSES_PER_PROMPT
from recipe.async_dapo_lab.quickstart.task import MAX_PROMPT_TOK, QUICK_START

from .summary import FOLDER

RECORD, LENGTHS = FOLDER / "quickstart_record.jsonl", FOLDER / "quickstart_lengths.jsonl"
MEASURED, PREDICTED = FOLDER.parent / "strategies" / "runs.csv", FOLDER / "quickstart_predicted.csv"
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


def record(runs: Path) -> None:
    """Keep of the calibration run and its task what the prediction needs."""
    keep_record(runs / RunsFile.folder_name(CALIBRATION_RUN), RECORD)
    keep_lengths(next(runs.glob("assets-*/train.parquet")), LENGTHS)


def measured() -> pd.DataFrame:
    """Of every strategy, the number of its runs and the mean rollout seconds of a step."""
    runs = pd.read_csv(MEASURED)
    runs = runs[runs["task"] == CALIBRATION_RUN["task"]]
    return runs.groupby("strategy")["rollout_s_mean"].agg(runs="size", measured_s="mean").loc[list(STRATEGIES)]


def predict() -> dict[str, float]:
    """Mean rollout seconds of a step, by strategy."""
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
            "valid_share": valid_share(RECORD),
            "calibrate": str(RECORD),
        },
    ).scenario()
    seconds = {}
    for name, options in STRATEGIES.items():
        system = recipe(
            name,
            over_sampling_batch_size=4 * PROMPTS_PER_STEP,  # as the record was made
            max_concurrent_prompts=12,
            rollout_pool_size=None,
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
    rows = measured()
    rows["predicted_s"] = pd.Series(predict())
    for system in ("measured", "predicted"):
        rows[f"{system}_ratio"] = rows[f"{system}_s"] / rows.loc[REFERENCE, f"{system}_s"]
    rows["error"] = rows["predicted_ratio"] / rows["measured_ratio"] - 1
    rows.round(4).to_csv(PREDICTED)


if __name__ == "__main__":
    main()
