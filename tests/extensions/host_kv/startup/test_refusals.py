"""Options that do not go with KV in host memory are refused."""

import pytest

from recipe.async_dapo.extensions.host_kv.declared import DECLARED

from ....support.refusals import assert_refused

EXAMPLES = """
async_dapo.host_kv_gib=1 -> async_dapo.rollout_strategy=partial_stale_kv
host_kv rollout.enable_prefix_caching=False -> rollout.enable_prefix_caching=True
host_kv rollout.data_parallel_size=2 -> rollout.data_parallel_size=1
host_kv rollout.enable_rollout_routing_replay=True -> rollout.enable_rollout_routing_replay=False
host_kv vllm.kv_transfer_config={kv_connector:a} -> vllm.kv_transfer_config=null
host_kv vllm.kv-offloading-size=4 -> vllm.kv-offloading-size=null
host_kv vllm.decode_context_parallel_size=2 -> vllm.decode_context_parallel_size=1
host_kv vllm.async_scheduling=True -> vllm.async_scheduling=null
async_dapo.rollout_strategy=partial_stale_kv -> async_dapo.host_kv_gib=1
"""
LINES = EXAMPLES.strip().splitlines()


@pytest.mark.parametrize(("rule", "line"), [*zip((*DECLARED.rules, *DECLARED.together), LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)
