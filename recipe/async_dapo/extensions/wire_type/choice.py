"""Which type the weights of a run travel in: its engines are asked, and its training workers are told."""

from typing import TYPE_CHECKING

import torch

from ...config.options import AsyncDAPOConfig
from ...training.observer import Observer
from ...weights.sender import AsyncDAPOActorRolloutRefWorker
from ...weights.stream import WeightReceiver
from .wire_type import EngineTypes, WireType, types_of

if TYPE_CHECKING:
    from ...training.engine_manager import EngineManager

NAME = "wire_type"


class WireChoice(Observer):
    """Has weights sent in the type of the engines' parameters. Engines that start later are of the same kind."""

    def __init__(self, options: AsyncDAPOConfig) -> None: ...

    def engines_started(self, engines: "EngineManager") -> None:
        if types := engines.call_extension(NAME, "choice.types_in_engine"):
            engines.actor_wg.call_extension(NAME, "choice.send_as", types)


def types_in_engine(receiver: WeightReceiver) -> EngineTypes:
    """In each process of an engine."""
    return types_of(receiver._iter_all_models(), receiver.model_runner.vllm_config.model_config.dtype)


def send_as(worker: AsyncDAPOActorRolloutRefWorker, engines: list[EngineTypes]) -> None:
    """In each training worker. All ranks decide alike: they gather each tensor together."""
    module = worker.actor.engine.module
    named = [*module.named_parameters(), *module.named_buffers()] if isinstance(module, torch.nn.Module) else []
    wire = WireType.agreed(engines, [name for name, _ in named])
    if wire is not None:
        worker.send_through(wire.cast)
