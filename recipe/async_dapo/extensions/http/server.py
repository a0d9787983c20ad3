"""The HTTP server of an agent loop worker: finds the session of a request by its key, and waits for its reply.

A request stays open as long as its reply takes, over rounds and weight updates. Meanwhile something is sent every few
seconds that no client takes for its reply: white space before a JSON document, a comment or a ping in a stream of
events. So limits of clients for silence never pass, and nothing has to be sent again.

This is no sandbox: an agent runs as the user of the run. What the server keeps apart is sessions: a key opens one.
"""

import asyncio
import contextvars
import json
import logging
import math
import platform
import resource
import secrets
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import ray
from aiohttp import web
from omegaconf import DictConfig

from ...config.extensions import declared, not_in_copy
from ...config.values import ConfigError
from ...core.users_errors import Cause, KnownPlaces
from ..gateway.messages import Refused, Reply, Request, json_of
from ..gateway.options import FILE, NODE, AgentOptions
from ..gateway.session import Exchange, Session
from .apis import Api, absent_apis, apis, event, openai_error

logger = logging.getLogger(__name__)

PING_S = 3.0
MOST_BYTES = 64 * 2**20  # of a request: a history of millions of tokens
_FILES = 65536  # two sockets a session pass the usual limit of 1,024
_FILES_A_SESSION = 4  # its connections in the worker; in the process of agents these, or a command's pipes
_FILES_BESIDE = 1024  # of a worker, or of a process of agents
_RESENT = "x-stainless-retry-count"  # the SDKs of both vendors count their retries here

_logged = KnownPlaces()  # of this worker
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ErrorOf = Callable[[Refused], dict[str, Any]]


class AgentServer:
    """Serves the sessions of one event loop.

    Args:
        host: see `AgentOptions`.
    """

    _of_loops: ClassVar[WeakKeyDictionary[Any, "dict[str, asyncio.Task[AgentServer]]"]] = WeakKeyDictionary()

    def __init__(self, host: str) -> None:
        self._host = host
        self._sessions: dict[bytes, Session] = {}  # by digests of their keys
        self._runner: web.AppRunner | None = None
        self._logged: set[str] = set()
        self.address = ""

    @classmethod
    def check(cls, options: AgentOptions, config: DictConfig) -> list[str]:
        """What can be known before a cluster starts. Workers raise their limit of open files themselves, up to the hard
        one.

        Returns:
            Warnings.

        Raises:
            ConfigError: if the agent could ask by no API, or a worker could not open what one batch's sessions take.
        """
        if not any(one.api for one in declared().values()):
            raise options.cannot(not_in_copy("chat_completions", "that of another API"))
        rollout = config.actor_rollout_ref.rollout
        sessions = math.ceil(config.data.train_batch_size * rollout.n / rollout.agent.num_workers)
        needed, (_, hard) = _FILES_BESIDE + _FILES_A_SESSION * sessions, resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < needed:
            what = f"{sessions} sessions that a worker may have open at once take {needed} open files"
            remedy = (
                f"raise the hard limit (ulimit -Hn {needed}; in docker --ulimit nofile={needed}) on every node, or set "
            )
            raise ConfigError("ulimit -Hn", hard, f"{what}; {remedy}more actor_rollout_ref.rollout.agent.num_workers")
        return absent_apis()

    @classmethod
    async def at(cls, host: str) -> "AgentServer":
        """The one of the running event loop, started with the first session."""
        started = cls._of_loops.setdefault(asyncio.get_running_loop(), {})
        if host not in started:
            own = contextvars.Context()  # it serves all sessions, and belongs to none
            started[host] = asyncio.create_task(cls(host)._start(), name="gateway", context=own)
        return await asyncio.shield(started[host])

    async def _start(self) -> "AgentServer":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        app = web.Application(client_max_size=MOST_BYTES)
        for api in apis():
            app.router.add_post(api.path, self._served(api.error_of, partial(self._answer, api)))
        app.router.add_get("/v1/models", self._served(openai_error, self._models))
        app.router.add_post("/reward", self._served(openai_error, self._reward))
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)  # when a client has gone
        await self._runner.setup()
        try:
            host = ray.util.get_node_ip_address().strip("[]") if self._host == NODE else self._host
            await web.TCPSite(self._runner, host, 0).start()
        except OSError as error:  # the same for every prompt: to count them as failed would use up the data
            what = (
                f"node {platform.node()} cannot listen there: {error}; name {NODE}, an address of every node, or none"
            )
            raise ConfigError(f"{FILE}, host", self._host, what) from error
        host, port = self._runner.addresses[0][:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def stop(self) -> None:
        """Only tests do: a worker's server ends with its process."""
        assert self._runner is not None
        await self._runner.cleanup()
        self._of_loops.pop(asyncio.get_running_loop(), None)

    def open(self, session: Session) -> str:
        """Returns the key of the session, which is valid while it is open."""
        key = f"sk-{secrets.token_urlsafe(32)}"
        self._sessions[_digest(key)] = session
        return key

    def close(self, key: str) -> None:
        del self._sessions[_digest(key)]

    def _session_of(self, request: web.Request) -> Session:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        session = self._sessions.get(_digest(bearer or request.headers.get("x-api-key", "")))
        if session is None:
            raise Refused(401, "no session has this key; a key is valid while its session is open", "invalid_api_key")
        return session

    def _served(self, error_of: ErrorOf, handle: Handler) -> Handler:
        """A handler whose refusals and errors have an API's form."""

        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                return await handle(request)
            except Refused as refused:
                return _told(error_of, refused)
            except (ConnectionError, web.HTTPException):
                raise
            except Exception as error:  # of the gateway: neither the worker nor other sessions end with it
                return _told(error_of, self._failed(request, error))

        return handler

    def _failed(self, http: web.Request, error: Exception) -> Refused:
        """What the agent is told. Its session counts it as a refusal, so that an agent that goes on asking is ended."""
        if _logged.is_new(Cause(repr(error), "".join(traceback.format_exception(error)))):
            logger.error("the gateway has failed at a request to %s", http.path, exc_info=error)
        refused = Refused(500, f"the gateway has failed: {error!r:.300}", "internal_error")
        with suppress(Refused):
            self._session_of(http).note_error(refused)
        return refused

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._session_of(request)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "verl"}
        return web.json_response({"object": "list", "data": [model]})

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        session = self._session_of(request)
        session.post(await _json_of(request))
        return web.json_response({"ok": True})

    async def _answer(self, api: Api, http: web.Request) -> web.StreamResponse:
        session = self._session_of(http)
        try:
            body = await _json_of(http)
            if not isinstance(body, dict):
                raise Refused(400, "the body must be a JSON object")
            request = api.request_of(body)
        except (Refused, KeyError, TypeError, ValueError, AttributeError) as error:
            refused = error if isinstance(error, Refused) else Refused(400, f"the request is not understood: {error!r}")
            session.counts["requests"] += 1
            session.refuse(refused)
            raise refused from error
        self._tell_once(request)
        is_again = http.headers.get(_RESENT, "0") not in ("", "0")
        waiting = asyncio.create_task(session.ask(request, is_again=is_again), name="request of an agent")
        is_sent = False
        try:
            response, is_sent = await self._reply(http, api, request, waiting, session)
            return response
        finally:
            if not waiting.done():  # its client is gone
                waiting.cancel()
            elif not is_sent and waiting.exception() is None:
                session.undelivered(waiting.result())

    async def _reply(
        self, http: web.Request, api: Api, request: Request, waiting: "asyncio.Task[Exchange]", session: Session
    ) -> tuple[web.StreamResponse, bool]:
        """What is sent, and whether its client has had the whole reply."""
        done, _ = await asyncio.wait({waiting}, timeout=PING_S)
        if done:
            waiting.result()  # a refusal has a status of its own
        kind = "text/event-stream" if request.streams else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-cache"})
        written = 0  # pieces of the reply
        try:
            await response.prepare(http)
            while not done:
                await response.write(api.ping if request.streams else b" ")
                session.counts["pings"] += 1
                done, _ = await asyncio.wait({waiting}, timeout=PING_S)
            for piece in _pieces(api, request, waiting.result().reply.result()):
                await response.write(piece)
                written += 1
            await response.write_eof()
        except ConnectionError:
            logger.debug("the client of a request has gone; it may ask again")
            return response, False
        except Exception as error:  # too late for a status
            refused = error if isinstance(error, Refused) else self._failed(http, error)
            told = api.error_of(refused)
            if _RESENT in http.headers and not request.streams:  # its SDK comes again, and is told then
                if http.transport is not None:
                    http.transport.abort()
                return response, False
            with suppress(ConnectionError):
                last = event(api.late_error(told, written), "error") if request.streams else json.dumps(told).encode()
                await response.write(last)
                await response.write_eof()
            return response, False
        return response, True

    def _tell_once(self, request: Request) -> None:
        new = [name for name in request.ignored if name not in self._logged]
        if new:
            self._logged.update(new)
            logger.info("agents set %s, which have no effect: the run samples in its own way", ", ".join(new))


def _told(error_of: ErrorOf, refused: Refused) -> web.StreamResponse:
    headers = {"x-should-retry": "false"} if refused.status < 500 else {}
    return web.json_response(error_of(refused), status=refused.status, headers=headers)


def _pieces(api: Api, request: Request, reply: Reply) -> Iterator[bytes]:
    if request.streams:
        yield from api.events_of(reply, has_usage=request.has_usage)
    else:
        yield json.dumps(api.body_of(reply)).encode()


async def _json_of(http: web.Request) -> Any:
    """
    Raises:
        Refused: for what is no JSON, too long, or nested too deeply.
    """
    try:
        return json_of(await http.read())
    except web.HTTPRequestEntityTooLarge:
        raise Refused(413, f"a request may have {MOST_BYTES} bytes") from None
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {error}") from error


def _digest(key: str) -> bytes:
    """Keys are looked up by these, so that the time of it tells nothing of them. A header may be no text."""
    return blake2b(key.encode(errors="surrogateescape")).digest()
