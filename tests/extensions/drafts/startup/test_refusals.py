"""Options that do not go with drafts are refused."""

import pytest

from recipe.async_dapo.extensions.drafts.declared import DECLARED

from ....support.composed_runs import of_options
from ....support.refusals import assert_refused, in_full

EXAMPLES = """
async_dapo.drafts=suffix ngram -> async_dapo.drafts=null
async_dapo.drafts=suffix megatron head -> async_dapo.drafts=null
ngram vllm.speculative_config.rejection_sample_method=synthetic -> vllm.speculative_config.rejection_sample_method=x
vllm.speculative_config={model:a/head} -> rollout.load_format=auto
head -> model.mtp.enable_rollout=False
vllm.speculative_config={method:deepseek_mtp} rollout.load_format=auto -> vllm.speculative_config.draft_load_config={}
async_dapo.drafts=mtp rollout.quantization=fp8 -> rollout.quantization=null
host_kv async_dapo.drafts=mtp -> async_dapo.drafts=suffix
host_kv vllm.speculative_config={model:a/head} rollout.load_format=auto -> vllm.speculative_config=null
host_kv megatron head -> async_dapo.host_kv_gib=null async_dapo.rollout_strategy=partial
async_dapo.drafts=suffix -arctic_inference -> async_dapo.drafts=null
vllm.speculative_config={method:suffix} -arctic_inference -> ngram
ngram vllm.logits_processors=[a.Processor] -> vllm.logits_processors=null
"""
LINES = EXAMPLES.strip().splitlines()


@pytest.mark.parametrize(("rule", "line"), [*zip(DECLARED.rules, LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)


def test_what_is_no_speculative_config_is_refused_once(run):
    override = in_full("vllm.speculative_config=some")[0]
    errors = [error for error in of_options(run(override)) if "speculative_config=some" in error]
    assert errors == [f"{override.lstrip('+')}: must be an object, or JSON of one"]
