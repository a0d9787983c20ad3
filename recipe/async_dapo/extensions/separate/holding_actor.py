"""A `HoldingServer` as an actor whose class can be loaded without vLLM."""

from typing import Any

from ...engines.server_actor import ServerActor, forwarded

METHODS = ("go_on", "turn_over")  # that it has beside those of the core's


class HoldingServerActor(ServerActor):
    """As `ServerActor`, of a `HoldingServer`."""

    def _class(self) -> type[Any]:
        from .holding_server import HoldingServer

        return HoldingServer


for _name in METHODS:
    setattr(HoldingServerActor, _name, forwarded(_name))
