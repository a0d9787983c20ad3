"""vLLM's executor for an engine of one process that opens no port."""

import torch.distributed
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class LocalExecutor(UniProcExecutor):
    """vLLM's own would make a process group of one rank, with a store that listens on all addresses of the machine."""

    def _distributed_args(self) -> tuple[str, int, int]:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        return super()._distributed_args()
