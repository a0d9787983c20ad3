"""Verdicts on verl's example scripts: what nothing reads is told apart from what is refused, and the page says what the
file does.
"""

import pandas as pd
import pytest

from benchmarks.reach.__main__ import verdict
from benchmarks.reach.summary import ACCEPTED, IGNORED, OPTIONS, OUTCOMES, REFUSED, VERDICTS, counts

FITS = [
    "data.train_batch_size=8",
    "data.max_prompt_length=8",
    "data.max_response_length=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "trainer.logger=console",
    "trainer.n_gpus_per_node=1",
]


@pytest.mark.slow
def test_what_nothing_reads_is_told_apart_from_what_is_refused():
    assert verdict(FITS) == {"training": "dp", "verdict": ACCEPTED, "left_out": 0, "reasons": ""}
    ignored = [*FITS, "+trainer.no_such_option=1", "trainer.balance_batch=False"]
    ignored += ["+actor_rollout_ref.rollout.engine_kwargs.vllm.no_such_argument=1"]
    found = verdict(ignored)
    assert (found["verdict"], found["left_out"]) == (IGNORED, 3)
    found = verdict([*ignored, "actor_rollout_ref.rollout.name=sglang"])
    assert (found["verdict"], found["left_out"]) == (REFUSED, 3)
    assert str(found["reasons"]).startswith("actor_rollout_ref.rollout.name=sglang: must be vllm")


def test_every_script_has_one_verdict():
    scripts = pd.read_csv(OPTIONS).groupby(["tree", "script"]).ngroups
    table = counts().set_index("Outcome")
    assert table.loc["all"].sum() == scripts == len(pd.read_csv(VERDICTS))
    assert (table.loc[list(OUTCOMES.values())].sum() == table.loc["all"]).all()
