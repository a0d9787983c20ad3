"""What is called where weights are sent, and where they arrive. A file apart from the observer's, whose imports, verl's
agent loops and trainer among them, an engine's process and a training worker's would take on for nothing.
"""

from typing import TYPE_CHECKING

import torch

from .wire_type import EngineTypes, WireType, types_of

if TYPE_CHECKING:  # each of the two processes has imported its own
    from ...weights.sender import AsyncDAPOActorRolloutRefWorker
    from ...weights.stream import WeightReceiver


def types_in_engine(receiver: "WeightReceiver") -> EngineTypes:
    """In each process of an engine."""
    return types_of(receiver._iter_all_models(), receiver.model_runner.vllm_config.model_config.dtype)


def send_as(worker: "AsyncDAPOActorRolloutRefWorker", engines: list[EngineTypes]) -> None:
    """In each training worker. All ranks decide alike: they gather each tensor together."""
    module = worker.actor.engine.module
    named = [*module.named_parameters(), *module.named_buffers()] if isinstance(module, torch.nn.Module) else []
    wire = WireType.agreed(engines, [name for name, _ in named])
    if wire is not None:
        worker.send_through(wire.cast)
