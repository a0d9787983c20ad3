"""KV of interrupted requests in host memory: they go on with it after their engine has slept.

This is a KV connector of vLLM's, which the engine's processes load by the name of its module. vLLM's own connector, of
which it is a kind, copies blocks while requests run. The first blocks of the longest requests, without which the others
are of no use, would be those that were copied longest ago, and thrown away first. Here blocks are copied when their
request is interrupted:

    stop       requests are aborted: their whole blocks are held, and the engine goes on taking empty steps
    copied     a part with each step, into the blocks that were used longest ago
    sleep      begins when nothing is left to copy; the KV cache is gone
    next round the prefix of a request that is continued is found by its hashes, and copied back by vLLM

With such a connector vLLM frees the blocks of a preempted request a step later where it schedules asynchronously, its
default on GPUs. A full cache then preempts most of the running requests in one step, one after the other. So engines
schedule synchronously here.

A stop aborts all requests at once. What is aborted while others go on, as the rest of a group of which a trajectory has
failed, is not wanted any more, and is not copied.

Host memory then needs room for what is interrupted at once, and what ended in between is thrown away first. A block
that had no room, or whose engine died, is prefilled again, under the new weights. Hashes are those of vLLM's prefix
cache, with a salt for the policy version that began the trajectory: no other one meets its blocks.
"""

from collections import deque
from itertools import chain
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request, RequestStatus
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

_AT_ONCE = 1024  # blocks copied with one step of the engine: a copy for each of them and each layer
_BYTES = "cpu_bytes_to_use"  # vLLM's option, of all ranks of an engine together


def transfer_config(gib: float, ranks: int) -> dict[str, Any]:
    """vLLM's argument `kv_transfer_config`.

    Args:
        gib: host memory for each rank [GiB].
        ranks: of an engine.
    """
    return {
        "kv_connector": HostKVConnector.__name__,
        "kv_connector_module_path": HostKVConnector.__module__,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {_BYTES: int(gib * 2**30) * ranks},
    }


class InterruptedBlocks(SimpleCPUOffloadScheduler):
    """The scheduler's side: which blocks are copied, and where to. What it holds is vLLM's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, lazy_offload=True, **kwargs)
        self._aborted: list[tuple[Request, list[KVCacheBlock]]] = []  # with their blocks, held in the KV cache
        self._planned: deque[tuple[int, int]] = deque()  # to copy: (block of the KV cache, block in host memory)
        self._used: list[KVCacheBlock] = []  # of what was interrupted, in host memory already, and held there

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if request.status is RequestStatus.FINISHED_ABORTED:
            held = self._whole_blocks(request, block_ids)
            self._gpu_block_pool.touch(held)
            self._aborted.append((request, held))
        return super().request_finished_all_groups(request, block_ids)

    def _whole_blocks(self, request: Request, block_ids: tuple[list[int], ...]) -> list[KVCacheBlock]:
        """Those that no further step of the engine writes to, and that have a hash to be found by."""
        written_tok = request.num_computed_tokens - request.num_output_placeholders
        written_tok -= written_tok % self.block_size
        found = []
        for group, ids in zip(self.cpu_kv_cache_config.kv_cache_groups, block_ids, strict=True):
            block_tok = group.kv_cache_spec.block_size * self.cp_world_size
            found += [self._gpu_block_pool.blocks[block_id] for block_id in ids[: written_tok // block_tok]]
        return [block for block in found if block.block_hash is not None and not block.is_null]

    def prepare_store_specs(self, scheduler_output: SchedulerOutput) -> tuple[list[int], list[int], list[str]]:
        goes_on = bool(scheduler_output.scheduled_cached_reqs.req_ids)  # what was being admitted at a stop is new
        if self._aborted and goes_on:
            self._let_go()
        elif self._aborted:
            self._plan()
        elif not self._planned and not super().has_pending_stores():
            self.cpu_block_pool.free_blocks(reversed(self._used))
            self._used = []
        now = [self._planned.popleft() for _ in range(min(_AT_ONCE, len(self._planned)))]
        return [gpu for gpu, _ in now], [host for _, host in now], []

    def _let_go(self) -> None:
        """Of what was aborted while other requests go on: ends of prefixes first, which are thrown away first."""
        for _, held in self._aborted:
            self._gpu_block_pool.free_blocks(reversed(held))
        self._aborted = []

    def _plan(self) -> None:
        """Give every block of what was interrupted a place, the longest requests first, while there are places. What is
        in host memory already stays there, and what is not wanted any more makes way.

        What is given back first is thrown away first: ends of prefixes are copied before their beginnings, and what was
        used is given back when all is copied.
        """
        host, gpu = self.cpu_block_pool, self._gpu_block_pool
        interrupted = sorted(self._aborted, key=lambda each: -each[0].num_tokens)
        used: list[KVCacheBlock] = []
        for request, held in interrupted:
            # One that waited, or was being copied back, has no blocks in the KV cache.
            prefix = self.cpu_coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens)[0]
            copied = [host.cached_block_hash_to_block.get_one_block(block.block_hash) for block in held]
            used += [block for block in (*chain(*prefix), *copied) if block is not None and not block.is_null]
        host.touch(used)
        self._used += used
        found = {block.block_hash for block in used}
        planned: list[tuple[int, int]] = []
        for _, held in interrupted:
            for block in held:
                if block.block_hash in found or not host.get_num_free_blocks():
                    gpu.free_blocks([block])
                    continue
                [place] = host.get_new_blocks(1)
                place._block_hash = block.block_hash  # as vLLM's own plan does: it is found once it is copied
                found.add(block.block_hash)
                planned.append((block.block_id, place.block_id))
        self._aborted = []
        self._planned.extend(reversed(planned))

    def has_pending_stores(self) -> bool:
        return bool(self._aborted or self._planned or self._used) or super().has_pending_stores()


class HostKVConnector(SimpleCPUOffloadConnector):
    """vLLM's connector with `InterruptedBlocks`, which a cache reset, part of every weight update, does not empty."""

    scheduler_manager: InterruptedBlocks | None

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if (vllms := self.scheduler_manager) is not None:
            self.scheduler_manager = InterruptedBlocks(
                vllm_config,
                kv_cache_config,
                self._kv_transfer_config.kv_connector_extra_config[_BYTES] // vllm_config.parallel_config.world_size,
                scheduler_block_size=vllms.block_size,
                hash_block_size=vllms.hash_block_size,
            )

    def has_pending_push_work(self) -> bool:
        """Keeps an engine without requests taking steps until all is copied, and from sleeping."""
        return self.has_pending_transfers()

    def reset_cache(self) -> bool:
        return True
