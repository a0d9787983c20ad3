"""What a real run on the CPU stack leaves for a calibration: the figures of its steps, and how long answers are."""

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.support.supervised_training import WARM_UP_STEPS
from recipe.async_dapo_lab.quickstart.task import TOK_PER_ADDITION

PROBLEMS = 2000
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
    """The metrics of a run's steps."""
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        data = json.loads(line)["data"]
        if "timing_s/step" in data:
            yield data


def keep_record(run: Path, record: Path) -> None:
    """Write what a calibration needs of a run, step by step, without its warm-up."""
    steps = list(steps_of(run))[WARM_UP_STEPS:]
    lines = [json.dumps({"data": {key: round(step[key], 5) for key in KEYS}}) for step in steps]
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("\n".join(lines) + "\n")


def keep_lengths(train_file: Path, lengths: Path) -> None:
    """Write the lengths of a task's answers [tokens]."""
    import pyarrow.parquet

    problems = pyarrow.parquet.read_table(train_file).to_pylist()
    lens_tok = [TOK_PER_ADDITION * problem["extra_info"]["additions"] for problem in problems[:PROBLEMS]]
    lengths.write_text("\n".join(map(str, lens_tok)) + "\n")


def valid_share(record: Path) -> float:
    """Of the groups that were judged up to a record's end [0-1]."""
    last = json.loads(record.read_text().splitlines()[-1])["data"]
    trained, filtered = last["async_dapo/ledger/trained"], last["async_dapo/ledger/filtered"]
    return trained / (trained + filtered)
