"""vLLM's copies of KV blocks to host memory and back, made at once where there are no streams to make them on."""

from typing import Any
from unittest.mock import MagicMock, patch

import torch
from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker


class CopiesAtOnce(SimpleCPUOffloadWorker):
    """The worker's side of vLLM's `SimpleCPUOffloadConnector`, with vLLM's layout of the blocks."""

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._backend = MagicMock()  # it copies on streams
        with patch.object(torch.cuda, "Stream", MagicMock(**{"priority_range.return_value": (0, 0)})):
            super().register_kv_caches(kv_caches)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        asked: Any = self._connector_metadata
        if asked is None:
            return None, None
        for name, cache in self.gpu_kv_caches.items():
            host = self.cpu_kv_caches[name]
            host[asked.store_cpu_blocks] = cache[asked.store_gpu_blocks]
            cache[asked.load_gpu_blocks] = host[asked.load_cpu_blocks]
        if asked.store_event >= 0:
            self._completed_store_events[asked.store_event] = 1
        return None, set(asked.load_event_to_reqs.get(asked.load_event, ())) or None
