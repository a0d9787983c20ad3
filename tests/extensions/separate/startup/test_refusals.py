"""Options that do not go with engines of their own are refused."""

import pytest

from recipe.async_dapo.extensions.separate.declared import DECLARED

from ....support.refusals import assert_refused

EXAMPLES = """
separate model.lora_rank=8 -> model.lora.merge=True
megatron separate model.lora.rank=8 -> model.lora.merge=True
separate rollout.nnodes=0 -> rollout.nnodes=1
separate rollout.n_gpus_per_node=3 rollout.tensor_model_parallel_size=2 -> rollout.n_gpus_per_node=4
separate async_dapo.rollout_strategy=discard -> async_dapo.rollout_strategy=consistent
separate async_dapo.max_staleness=0 -> async_dapo.max_staleness=1
separate async_dapo.stop_rule=fifo -> async_dapo.stop_rule=null
separate async_dapo.max_tokens_per_round=16 -> async_dapo.max_tokens_per_round=null
separate async_dapo.over_sampling_batch_size=8 -> async_dapo.over_sampling_batch_size=9
"""
LINES = EXAMPLES.strip().splitlines()


@pytest.mark.parametrize(("rule", "line"), [*zip((*DECLARED.rules, *DECLARED.together), LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)
