"""vLLM plugin: keep linear weights loadable after the CPU build has packed them for oneDNN."""

import os
from functools import wraps


def register() -> None:
    """Called by vLLM in every process before a model is built; may be called more than once.

    vLLM's CPU build frees a layer's weight once it is packed. The next weight sync from the
    trainer would then find no parameter to load into, and the trainer would wait forever.
    """
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    from vllm.model_executor.layers import utils

    original = utils.dispatch_cpu_unquantized_gemm
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def keep_weight(layer: object, remove_weight: bool) -> None:
        original(layer, remove_weight=False)

    utils.dispatch_cpu_unquantized_gemm = keep_weight
