"""The real stack on CPUs: verl's colocate_async as it was measured (benchmarks/side_by_side), as a record to plan from.

The engine is fitted like any other; of the tiny model nothing but overheads takes time.
"""

import json
from dataclasses import replace

from benchmarks.side_by_side import summary as side_by_side
from benchmarks.support.supervised_training import TAILS as SHAPES
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.record import Record, record_of_means
from recipe.async_dapo_lab.plan.systems import verl_colocate_async
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP, REQUESTS_IN_FLIGHT, RESPONSES_PER_PROMPT

TAILS = (8, 25)
LENGTHS = side_by_side.FOLDER.parent / "null_test"  # of each tail's task: response lengths, and a run's ledger
COLOCATE = verl_colocate_async(groups=PROMPTS_PER_STEP)
COLOCATE = replace(COLOCATE, habits=replace(COLOCATE.habits, poll_s=0.05))


def source_of(tail: int) -> str:
    return f"real stack, two CPU cores, tail {tail}"


def recorded(tail: int) -> tuple[Record, Inputs, float]:
    """What colocate_async has logged, the job, and the measured step of `partial` [s]."""
    runs = side_by_side.read_runs(file="one_update.csv")
    runs = runs[runs["tail"] == tail].astype({"system": str})
    means = runs.groupby("system")[["step_s_mean", "rollout_s_mean", "old_log_prob_s", "update_actor_s"]].mean()
    verls = means.loc[side_by_side.SHORT_POLL]
    record = record_of_means(
        source_of(tail),
        step=verls["step_s_mean"],
        gen=verls["rollout_s_mean"],
        old_log_prob=verls["old_log_prob_s"],
        update_actor=verls["update_actor_s"],
    )
    last = json.loads((LENGTHS / f"record-{tail}.jsonl").read_text().splitlines()[-1])["data"]
    trained, filtered = (last[f"async_dapo/ledger/{kind}"] for kind in ("trained", "filtered"))
    inputs = Inputs.load(
        {
            "weight_gb": 0.001,
            "kv_bytes_per_token": 100.0,
            "servers": 1,
            "max_num_seqs": REQUESTS_IN_FLIGHT,
            "train_batch_size": PROMPTS_PER_STEP,
            "rollout_n": RESPONSES_PER_PROMPT,
            "max_response_length": SHAPES[tail].max_response_tok,
            "prompt_len_tok": 16,
            "lengths": str(LENGTHS / f"lengths-{tail}.jsonl"),
            "length_correlation": 1.0,
            "valid_share": trained / (trained + filtered),
            "updates": 1,
            "training_s": record.train_s,
            "log_prob_s": record.log_prob_s,
            "update_s": record.rest_s,
        }
    )
    return record, inputs, float(means.loc["partial", "step_s_mean"])
