"""KV of interrupted requests in host memory: what is copied there. That requests of a real engine go on with it is in
`test_asleep_and_awake.py`."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

from recipe.async_dapo.extensions.host_kv import connector
from recipe.async_dapo.extensions.host_kv.connector import InterruptedBlocks

BLOCK_TOK, KV_BLOCKS, MOST = 4, 65, 8


class Stops:
    """Requests that stop and go on, without an engine: blocks of a KV cache whose hashes say whose they are."""

    def __init__(self, room: int) -> None:
        spec = FullAttentionSpec(block_size=BLOCK_TOK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        tensor = KVCacheTensor(size=KV_BLOCKS * spec.page_size_bytes, shared_by=["layer"])
        config = KVCacheConfig(KV_BLOCKS, [tensor], [KVCacheGroupSpec(["layer"], spec)])
        vllms = SimpleNamespace(
            kv_events_config=None,
            parallel_config=SimpleNamespace(decode_context_parallel_size=1, world_size=2),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
            model_config=SimpleNamespace(max_model_len=1024),
            max_in_flight_tokens=64,
            speculative_config=None,
        )
        self.cache = BlockPool(KV_BLOCKS, enable_caching=True, hash_block_size=BLOCK_TOK)
        self.copied = 0
        self.blocks = InterruptedBlocks(
            vllms, config, (1 + room) * spec.page_size_bytes, scheduler_block_size=4, hash_block_size=4
        )
        self.blocks.bind_gpu_block_pool(self.cache)

    def abort(self, lengths: dict[str, int], *, going_on: Sequence[str] = ()) -> None:
        """Requests are aborted with so many whole blocks, and the engine takes steps with those that go on until it may
        sleep."""
        for name, length in lengths.items():
            held = self.cache.get_new_blocks(length + 1)
            for block, block_hash in zip(held, self.hashes(name, length), strict=False):
                block._block_hash = make_block_hash_with_group_id(block_hash, 0)
            request = SimpleNamespace(
                request_id=name,
                status=RequestStatus.FINISHED_ABORTED,
                num_computed_tokens=length * BLOCK_TOK + 3,
                num_output_placeholders=1,
                num_tokens=length * BLOCK_TOK + 3,
                block_hashes=self.hashes(name, length),
            )
            self.blocks.request_finished_all_groups(request, ([block.block_id for block in held],))
            self.cache.free_blocks(reversed(held))
        while self.blocks.has_pending_stores():
            cached = SimpleNamespace(req_ids=list(going_on))
            step = SimpleNamespace(preempted_req_ids=None, scheduled_cached_reqs=cached)
            meta = self.blocks.build_connector_meta(step)
            self.copied += len(meta.store_gpu_blocks)
            done = SimpleCPUOffloadWorkerMetadata({meta.store_event: 2} if meta.store_event >= 0 else {})
            self.blocks.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=done))
        assert self.cache.reset_prefix_cache(), "a block is held on: the engine could not sleep"

    def found(self, name: str, length: int) -> int:
        """Blocks that a request would be given back."""
        hashes = self.hashes(name, length)
        return self.blocks.cpu_coordinator.find_longest_cache_hit(hashes, length * BLOCK_TOK)[1] // BLOCK_TOK

    def kept(self, name: str) -> int:
        """Its blocks in host memory."""
        blocks = self.blocks.cpu_block_pool.cached_block_hash_to_block
        found = (blocks.get_one_block(make_block_hash_with_group_id(each, 0)) for each in self.hashes(name, MOST))
        return sum(block is not None for block in found)

    @staticmethod
    def hashes(name: str, length: int) -> list[bytes]:
        return [f"{name} {k}".encode() for k in range(length)]


LENGTHS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, MOST), max_size=5)


@given(room=st.integers(1, 40), stops=st.lists(LENGTHS, min_size=1, max_size=6), at_once=st.integers(1, 9))
def test_what_was_interrupted_last_is_in_host_memory_as_far_as_there_is_room(room, stops, at_once):
    world = Stops(room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connector, "_AT_ONCE", at_once)
        for lengths in stops:
            known = {name: world.found(name, length) for name, length in lengths.items()}
            copied = world.copied
            world.abort(lengths)
            found = {name: world.found(name, length) for name, length in lengths.items()}
            assert sum(found.values()) == min(room, sum(lengths.values()))
            assert all(found[name] >= known[name] for name in lengths), "copied blocks made way for others"
            assert world.copied - copied == sum(found.values()) - sum(known.values()), "a block was copied twice"
            for name in "abcdef":
                assert world.kept(name) == world.found(name, MOST), "a block is there without those before it"
    assert world.blocks.cpu_block_pool.get_num_free_blocks() == room


@given(unwanted=LENGTHS, kept=LENGTHS)
def test_what_is_aborted_while_others_go_on_is_not_copied_and_takes_no_room(unwanted, kept):
    world = Stops(room=MOST * 5)
    world.abort(kept)
    copied = world.copied
    world.abort({f"unwanted {name}": length for name, length in unwanted.items()}, going_on=["another"])
    assert world.copied == copied == sum(kept.values())
    assert {name: world.found(name, length) for name, length in kept.items()} == kept
