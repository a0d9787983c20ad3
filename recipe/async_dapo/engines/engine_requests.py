"""One request to one engine: lease a server, send, record what comes back, give the lease back."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from verl.workers.rollout.replica import TokenOutput

from ..core.leases import Requested, Returned
from ..core.trajectory import Timed, Turn
from ..recording import append_tokens
from ..runtime.actor_watch import ActorDied
from ..runtime.aio import RECONNECT_S, Gathered, resolve, run_to_completion
from .protocol import ABORTED, ERROR, MORE, UNKNOWN, counts_of, extra_of
from .routes import append_routes

logger = logging.getLogger(__name__)


class EnginesUnavailable(RuntimeError):
    """No server is left to generate on: training cannot go on."""


class EngineRequests:
    """Sends requests through the load balancer and records their tokens, whatever happens to the caller.

    Args:
        balancer: the load balancer actor.
        cleanup_timeout_s: longest wait for an interrupted request to come back [s].
        rolling: servers stop one at a time for new weights; a request that one sends back goes on elsewhere, or there.
    """

    def __init__(self, balancer: ActorHandle, *, cleanup_timeout_s: float, rolling: bool = False) -> None:
        self._balancer = balancer
        self._cleanup_timeout_s = cleanup_timeout_s
        self._rolling = rolling
        self._leases = Gathered[Requested | Returned, dict[str, str | None]](self._exchange)
        self._servers: dict[str, ActorHandle] = {}

    async def advance(
        self,
        turn: Turn,
        request_id: str,
        prompt_ids: list[int],
        params: dict[str, Any],
        options: dict[str, Any],
        *,
        group: str | None = None,
    ) -> bool:
        """Continue an unfinished turn by a request.

        Args:
            request_id: the trajectory's name, for sticky routing.
            prompt_ids: the prompt and what the turn has generated.
            params: sampling parameters with `max_tokens`; `options`: further arguments of the server's `generate`.
            group: whose answer is generated.

        Returns:
            False when the engines stop. Else the turn has its finish reason, or the caller tries again: the request was
            lost with its server, or with the connection to it, or sent back by a server that is updated.

        Raises:
            EnginesUnavailable: when no server is left.
            ActorDied: when the load balancer is gone, or out of reach.
            RuntimeError: when the engine has failed at this request: what it has generated is no answer.
        """
        lease_id, server_id, keeps_lease = uuid4().hex, "", False
        output: TokenOutput | None = None
        before_tok, asked_s, sent_s = turn.generated_tok, time.time(), None
        try:
            leased_id = await self._lease(request_id, lease_id, group)
            server = None if leased_id is None else await self._server(leased_id)
            if leased_id is None or server is None:
                return leased_id is not None
            server_id, sent_s = leased_id, time.time()
            arguments = options | {"prompt_ids": prompt_ids, "sampling_params": params, "request_id": lease_id}
            output = await self._receive(server.generate.remote(**arguments), server, lease_id, turn)
        except RayActorError as error:  # the server's
            keeps_lease = isinstance(error, ActorUnavailableError)  # until the request is out of its engine
            await self._give_up(Returned(server_id=server_id, lease_id=lease_id), is_reachable_later=keeps_lease)
            return True
        except asyncio.CancelledError:
            if server_id:  # it may still be in its engine, which forgets it before the lease comes back
                keeps_lease = True
                self._balancer.abandon.remote(Returned(server_id=server_id, lease_id=lease_id))
            raise
        finally:
            over_s, tokens = time.time(), turn.generated_tok - before_tok
            turn.timed += (Timed(server_id, asked_s, sent_s or over_s, over_s, tokens),)
            if not keeps_lease:
                load = None if output is None else extra_of(output)["load"]
                self._leases.add(Returned(lease_id=lease_id, server_id=server_id, load=load))
        if output.stop_reason == ERROR:
            raise RuntimeError(f"server {server_id} has ended a request with an error; its log says which")
        if output.stop_reason not in (ABORTED, UNKNOWN):
            turn.finish_reason = extra_of(output)["finish_reason"]
        return output.stop_reason != ABORTED or self._rolling

    async def _give_up(self, request: Returned, *, is_reachable_later: bool) -> None:
        """A request is lost: with its server, or only with the connection to a server that goes on."""
        if is_reachable_later:
            logger.warning("server %s cannot be reached; what it generated is lost, trying again", request.server_id)
            self._balancer.abandon.remote(request)
            await asyncio.sleep(RECONNECT_S)
        else:
            logger.error("server %s died under a request; trying another", request.server_id)
            self._servers.pop(request.server_id, None)
            with _balancer_needed():
                await self._balancer.look_after_servers.remote([request.server_id])  # else the next lease may be there

    async def _lease(self, request_id: str, lease_id: str, group: str | None) -> str | None:
        with _balancer_needed():
            try:
                decided = await self._leases.ask(Requested(lease_id=lease_id, request_id=request_id, group=group))
                return decided[lease_id] if lease_id in decided else await self._balancer.granted.remote(lease_id)
            except RayTaskError as error:
                raise EnginesUnavailable(str(error.cause)) from error

    async def _exchange(self, items: Sequence[Requested | Returned]) -> dict[str, str | None]:
        """What is returned reaches the balancer over a connection that is cut for a while, too: twice is harmless."""
        requests = [item for item in items if isinstance(item, Requested)]
        returned = [item for item in items if isinstance(item, Returned)]
        try:
            return await self._balancer.exchange.remote(requests, returned)
        except ActorUnavailableError:
            logger.warning("the load balancer cannot be reached; %d leases are returned again", len(returned))
            for item in returned:
                self._leases.add(item)
            if not requests:
                await asyncio.sleep(RECONNECT_S)
                return {}
            raise

    async def _server(self, server_id: str) -> ActorHandle | None:
        """The handle of a server, asked for once; None if it has been removed."""
        if server_id not in self._servers:
            with _balancer_needed():
                handle = await self._balancer.server.remote(server_id)
            if handle is None:
                return None
            self._servers[server_id] = handle
        return self._servers[server_id]

    async def _receive(self, ref: ObjectRef, server: ActorHandle, lease_id: str, turn: Turn) -> TokenOutput:
        """Await an output and record it, also when the caller is cancelled meanwhile."""
        recording = asyncio.ensure_future(_record_all(ref, server, lease_id, turn))
        try:
            return await asyncio.shield(recording)
        except asyncio.CancelledError:
            server.abort_requests.remote([lease_id])
            try:
                await run_to_completion(resolve(recording), timeout_s=self._cleanup_timeout_s)
            except Exception as error:  # the server died or hangs: its tokens are lost, the cancellation is not
                logger.warning("what a cancelled request has generated is lost: %r", error)
            raise


@contextmanager
def _balancer_needed() -> Iterator[None]:
    """For calls of the load balancer: without it there is no lease."""
    try:
        yield
    except RayActorError as error:
        what = "cannot be reached" if isinstance(error, ActorUnavailableError) else "is gone"
        raise ActorDied(f"the load balancer {what}: {error}") from error


async def _record_all(ref: ObjectRef, server: ActorHandle, lease_id: str, turn: Turn) -> TokenOutput:
    """Record piece after piece. Returns the last one: the request is over."""
    while True:
        output: TokenOutput = await ref
        append_tokens(turn, output.token_ids, output.log_probs or [], extra_of(output)["segments"])
        if (routes := extra_of(output).get("routes")) is not None:
            append_routes(turn, *routes)
        turn.counts.update(counts_of(output))
        if extra_of(output)["finish_reason"] == "stop":  # Known also to a caller that was cancelled meanwhile.
            turn.finish_reason = "stop"
        if output.stop_reason != MORE:
            return output
        ref = server.reattach.remote(lease_id)
