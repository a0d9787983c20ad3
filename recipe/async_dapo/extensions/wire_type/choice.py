"""Which type the weights of a run travel in: its engines are asked, and its training workers are told."""

from typing import TYPE_CHECKING

from ...config.options import AsyncDAPOConfig
from ...training.observer import Observer
from ...weights.sender import on_ranks

if TYPE_CHECKING:
    from ...training.engine_manager import EngineManager

NAME = "wire_type"


class WireChoice(Observer):
    """Has weights sent in the type of the engines' parameters. Engines that start later are of the same kind."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        self._limit_s = options.weight_update_timeout_s

    def engines_started(self, engines: "EngineManager") -> None:
        if types := engines.call_extension(NAME, "both_ends.types_in_engine"):
            on_ranks(engines.actor_wg, self._limit_s, NAME, "both_ends.send_as", types)
