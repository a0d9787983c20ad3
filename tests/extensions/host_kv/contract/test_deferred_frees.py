"""vLLM's own scheduler with a full cache and our connector: how many requests one step preempts, with a made-up runner.

Where a KV connector reads, and several steps are in flight, vLLM frees the blocks of a preempted request a step later.
"""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from recipe.async_dapo.extensions.host_kv.connector import transfer_config

from ....support.composed_runs import write_model

BLOCK_TOK, BLOCKS, REQUESTS, PROMPT_TOK, ANSWER_TOK = 16, 130, 24, 33, 200


def scheduler(model: Path, *, is_async: bool, has_host_kv: bool) -> Scheduler:
    transfer = {"kv_transfer_config": KVTransferConfig(**transfer_config(0.01, 1))} if has_host_kv else {}
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), max_model_len=512, dtype="float32", skip_tokenizer_init=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=64,
            max_num_batched_tokens=4096,
            max_model_len=512,
            is_encoder_decoder=False,
            async_scheduling=is_async,
        ),
        cache_config=CacheConfig(block_size=BLOCK_TOK, gpu_memory_utilization=0.5),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
        **transfer,
    )
    config.scheduler_config.async_scheduling = is_async  # which a CPU's platform turns off
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK_TOK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    tensor = KVCacheTensor(size=BLOCKS * spec.page_size_bytes, shared_by=["layer"])
    return (AsyncScheduler if is_async else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(BLOCKS, [tensor], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOK,
    )


def preempted(scheduler: Scheduler, *, in_flight: int) -> list[int]:
    """Requests that each step preempts, until all have their answers.

    Args:
        in_flight: steps that are computed while the next one is planned [count].
    """
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_TOK, sha256)
    for number in range(REQUESTS):
        params = SamplingParams(max_tokens=ANSWER_TOK, ignore_eos=True)
        params.update_from_generation_config({}, 2)
        prompt = [(7 * number + k) % 200 for k in range(PROMPT_TOK)]
        about: dict[str, Any] = {"sampling_params": params, "pooling_params": None, "block_hasher": hasher}
        scheduler.add_request(Request(request_id=str(number), prompt_token_ids=prompt, **about))
    steps: list[int] = []
    planned = deque[Any]()
    answered_tok = 0
    while scheduler.get_num_unfinished_requests() or planned:
        if scheduler.get_num_unfinished_requests():
            step = scheduler.schedule()
            steps.append(len(step.preempted_req_ids or ()))
            planned.append(step)
        if len(planned) >= in_flight or not scheduler.get_num_unfinished_requests():
            step = planned.popleft()
            names = list(step.num_scheduled_tokens)
            tokens = [[5]] * len(names)
            output = ModelRunnerOutput(
                req_ids=names, req_id_to_index={name: k for k, name in enumerate(names)}, sampled_token_ids=tokens
            )
            outputs = scheduler.update_from_output(step, output)
            answered_tok += sum(len(one.new_token_ids) for each in outputs.values() for one in each.outputs)
        assert len(steps) < 5000
    assert answered_tok == REQUESTS * ANSWER_TOK
    return steps


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.mark.parametrize(
    ("is_async", "has_host_kv", "is_deferred"),
    [(True, False, False), (True, True, True), (False, True, False)],
    ids=["plain, on a GPU", "the reason", "with host KV, as engines run"],
)
def test_given_a_full_cache_then_one_step_preempts_many_only_where_blocks_are_freed_late(
    model, is_async, has_host_kv, is_deferred
) -> None:
    """If the middle one fails, vLLM frees in time: `async_scheduling=False` and its rule may go."""
    it = scheduler(model, is_async=is_async, has_host_kv=has_host_kv)
    assert it.defer_block_free is is_deferred
    steps = preempted(it, in_flight=2 if is_async else 1)
    if is_deferred:
        assert max(steps) > 10 and sum(steps) > 100
    else:
        assert max(steps) <= 3 and 0 < sum(steps) < 50
