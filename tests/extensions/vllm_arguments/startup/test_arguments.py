"""Arguments that vLLM does not have, and texts that one does not take, are refused before a run starts."""

import pytest

from ....support.composed_runs import of_options
from ....support.refusals import assert_line

# Overrides -> how the message begins, with the first override where it begins with a colon.
WRONG = """
rollout.dtype=fp16 -> : must be one of auto, half, float16, bfloat16
rollout.scheduling_policy=fifo -> : must be one of fcfs, priority
rollout.load_format=dumy -> : must be one of .*; did you mean dummy\\?
vllm.kv_cache_dtype=fp9 -> : must be one of .*; did you mean fp8\\?
vllm.kv-cache-dtype=fp9 -> : must be one of .*; did you mean fp8\\?
vllm.kv_cache_dtyp=fp8 -> : vLLM has no such argument; did you mean kv_cache_dtype\\?
""".strip().splitlines()


@pytest.mark.parametrize("line", WRONG)
def test_a_name_or_a_text_that_vllm_does_not_know_is_refused_with_what_was_meant(run, line):
    assert_line(run, line)


def test_a_format_of_weights_that_a_plugin_of_vllm_may_register_passes(run):
    assert not of_options(run("actor_rollout_ref.rollout.load_format=my_store"))
