"""Which engines live. The load balancer holds the one list; trainer, clients and weight updates ask there.

What notices that an engine died, and who sees to it:

    watch        at once: a call that waits in each of its servers fails when that dies; a server ends with its engine's
                 core (`started_server.py`). `EngineManager` begins it, at the start and for each engine that joins
    ask          a stop, an opening, a sleep, an aborted request: it is dead, or has not answered in `engine_timeout_s`.
                 The load balancer asks so
    look_after   it gives no sign of life: `AsyncDAPOServer.ping` says that it stands still, or nothing. Prompted every
                 half `engine_timeout_s` of a round (`AsyncDAPOAgentLoopManager.next_event`), and by a client whose
                 request is lost (`EngineRequests`)

A training worker that brings weights in vain ends the engine's servers (`weights/adapter.py`), and `watch` notices.
Where engines have GPUs of their own, one that takes no weights is struck off here, too (`extensions/separate`:
`RollingLoadBalancer`). What follows: `GlobalLoadBalancer` frees its leases, and the requests fail over to others;
before the next weights `EngineManager` ends what is left of its processes. The actors of the run itself, which are
not engines, have `runtime/actor_watch.py`.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError

from ..runtime.aio import await_all, insist

logger = logging.getLogger(__name__)


class EngineLives:
    """The engines that live, by the addresses of their servers, and what became of those that are lost.

    An engine is lost when a call finds one of its servers dead, be it only the call that waits for that, when it has
    not answered in time, or when it answers and generates nothing. It never comes back: one that starts in its place
    is another.

    Args:
        engines: address -> vLLM server actor.
        timeout_s: longest time an engine may take to answer [s].
        on_lost: called with the address of each engine that is lost, once.

    Attributes:
        alive: as `engines`.
        lost: address -> which engine it was, and what became of it.
    """

    def __init__(self, engines: Mapping[str, ActorHandle], *, timeout_s: float, on_lost: Callable[[str], None]) -> None:
        self.alive = dict(engines)
        self.lost: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._watches: list[asyncio.Task[Any]] = []

    def watch(self, address: str, name: str, servers: Sequence[ActorHandle]) -> None:
        """Notice when one of an engine's servers dies, one a node, also while nothing is asked of it."""
        self._names[address] = name
        for server in servers:
            watching = self._call(address, server, "until_death")
            self._watches.append(asyncio.create_task(watching, name=f"watch {address}"))

    def end_watches(self) -> None:
        """The run is over: engines end now, and that is no news."""
        for watching in self._watches:
            watching.cancel()

    def join(self, address: str, server: ActorHandle) -> None:
        """An engine that has started in mid-run; its address may be that of a lost one."""
        if (fate := self.lost.pop(address, None)) is not None:
            self.lost[f"{address} (loss {len(self.lost) + 1})"] = fate
        self.alive[address] = server

    def lose(self, address: str, why: str) -> None:
        """Strike an engine off the list, if it is there, and end it: its other requests may hang."""
        if (server := self.alive.pop(address, None)) is not None:
            ray.kill(server)
            self.explain(address, why)
            self._on_lost(address)

    def explain(self, address: str, why: str) -> None:
        """What became of a lost engine, or what is known better by now."""
        self.lost[address] = f"{self._names.get(address, address)} {why}"
        logger.critical("%s; engines left: %d", self.lost[address], len(self.alive))

    async def ask_all(self, method: str, *args: Any, but: Collection[str] = ()) -> dict[str, Any]:
        """Call a method of every engine, but some. Returns the answers of those that still live then, without None."""
        asked = [address for address in self.alive if address not in but]
        answers = zip(asked, await await_all(self.ask(address, method, *args) for address in asked), strict=True)
        return {address: answer for address, answer in answers if answer is not None and address in self.alive}

    async def ask(self, address: str, method: str, *args: Any) -> Any:
        """Call a method of an engine, again if it cannot be reached: all of these calls may arrive twice. Returns its
        answer; None if it is lost."""
        if (server := self.alive.get(address)) is None:
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._call(address, server, method, *args)
        except TimeoutError:
            self.lose(address, f"has not answered to {method} within async_dapo.engine_timeout_s={self._timeout_s}")
            return None

    async def look_after(self, address: str) -> None:
        """Ask an engine for a sign of life. It is lost if it is dead or silent, or says that it stands still."""
        if (wrong := await self.ask(address, "ping")) is not None:
            self.lose(address, wrong)

    async def _call(self, address: str, server: ActorHandle, method: str, *args: Any) -> Any:
        def goes_on(_: ActorUnavailableError) -> bool:
            logger.warning("engine %s cannot be reached; %s is repeated", address, method)
            return address in self.alive

        try:
            return await insist(lambda: getattr(server, method).remote(*args), goes_on=goes_on)
        except ActorUnavailableError:  # and it was lost meanwhile
            return None
        except RayActorError as error:
            first_line, *_ = str(error).splitlines()  # Ray goes on with every reason there could be
            self.lose(address, f"died: {first_line}")
            return None
