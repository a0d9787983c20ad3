"""What the trainer takes of a GPU's memory, and what is left to the engines."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo_lab.plan.trainer_memory import TrainerMemory

GB = 1e9
QWEN3_8B = TrainerMemory(parameters=8.2e9, shards=8, layers=36, hidden=4096, vocabulary=151_936, micro_batch_tok=8192)


def test_fp32_weights_gradients_and_adam_are_sixteen_bytes_a_parameter():
    assert QWEN3_8B.state_bytes == 16 * 8.2e9 / 8
    assert replace(QWEN3_8B, value_bytes=2).state_bytes == 8 * 8.2e9 / 8
    assert replace(QWEN3_8B, is_adapter=True).state_bytes == 4 * 8.2e9 / 8
    assert replace(QWEN3_8B, stays_on_host=True).state_bytes == 0


def test_a_kept_kv_cache_of_85_percent_of_80_gb_does_not_fit_beside_the_state_of_8b_on_8_gpus():
    offloaded = replace(QWEN3_8B, offloads_weights=True, offloads_optimizer=True)
    assert offloaded.engine_share(80 * GB, keeps_kv=True, with_activations=False) == pytest.approx(1 - 16.4 / 80)
    assert offloaded.engine_share(80 * GB, keeps_kv=False) == 1
    assert QWEN3_8B.engine_share(80 * GB, keeps_kv=False) == pytest.approx(1 - 12.3 / 80)


@given(st.integers(1, 1024), st.booleans(), st.booleans(), st.floats(8, 200))
def test_more_gpus_offloading_and_freed_caches_never_leave_engines_less(shards, keeps_kv, offloads, memory_gb):
    memory = replace(QWEN3_8B, shards=shards, offloads_weights=offloads)
    share = memory.engine_share(memory_gb * GB, keeps_kv=keeps_kv)
    assert share <= memory.engine_share(memory_gb * GB, keeps_kv=False)
    assert share <= replace(memory, shards=shards + 1).engine_share(memory_gb * GB, keeps_kv=keeps_kv)
    assert share <= replace(memory, offloads_optimizer=True).engine_share(memory_gb * GB, keeps_kv=keeps_kv)
    assert share <= memory.engine_share(memory_gb * GB, keeps_kv=keeps_kv, with_activations=False)
