"""The training worker's end of a weight transfer to its own run's engine: it ends with that, or at a time limit.

verl's waits without limit for an engine to take the weights. Every rank gathers every tensor together with the others,
so a rank whose engine is lost goes on gathering, and discards the weights.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
import torch
import zmq
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from ..runtime.aio import RECONNECT_S, insist
from .stream import (
    CUSTOM_OPTIONS,
    NamedTensor,
    WeightFilter,
    private_handle,
    run_name,
    sockets_folder,
    unchanged,
    with_proof,
)

logger = logging.getLogger(__name__)


class ReceivingEngine:
    """The engine that a training worker sends its weights to, as this worker sees it: notes the first thing that goes
    wrong with it. `fd` can be read from then on, so that a transfer ends with the engine. The rest of the run learns of
    dead engines by `engines/lives.py`.

    Args:
        servers: the engine's server actors, one a node.
    """

    def __init__(self, servers: Sequence[ActorHandle]) -> None:
        self.fd, self._notify = os.pipe()
        self.failure: BaseException | None = None
        self._lock = threading.Lock()
        for server in servers:
            self._watch(server)

    def follow(self, call: Future[Any]) -> None:
        """A failure of this call is one of the engine."""
        call.add_done_callback(lambda done: self.note(done.exception()))

    def note(self, failure: BaseException | None) -> None:
        """Called in any thread."""
        with self._lock:
            if failure is not None and self.failure is None:
                self.failure = failure
                os.write(self._notify, b"!")

    def _watch(self, server: ActorHandle) -> None:
        server.until_death.remote().future().add_done_callback(partial(self._on_end, server))

    def _on_end(self, server: ActorHandle, call: Future[Any]) -> None:
        error = call.exception()
        if isinstance(error, ActorUnavailableError):  # only the connection broke
            again = threading.Timer(RECONNECT_S, self._watch, [server])
            again.daemon = True
            again.start()
        else:
            self.note(error)


class _EngineLost(Exception):
    """The engine is dead, or has not answered in time."""


class _WatchedSocket:
    """A ZMQ socket whose waits end with the engine at its other end.

    Args:
        timeout_s: longest wait for the engine to take what is sent, or to answer [s].
    """

    def __init__(self, socket: zmq.Socket, receiver: ReceivingEngine, *, timeout_s: float) -> None:
        self._socket = socket
        self._receiver = receiver
        self._timeout_s = timeout_s

    def send_pyobj(self, message: Any) -> None:
        self._wait_for(zmq.POLLOUT)
        self._socket.send_pyobj(message, zmq.NOBLOCK)

    def recv(self) -> bytes:
        self._wait_for(zmq.POLLIN)
        return self._socket.recv(zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close(linger=0)

    def _wait_for(self, event: int) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, event)
        poller.register(self._receiver.fd, zmq.POLLIN)
        ready = dict(poller.poll(int(1000 * self._timeout_s)))
        if self._receiver.failure is not None:
            raise self._receiver.failure
        if not ready:
            raise _EngineLost(f"has not taken weights within async_dapo.engine_timeout_s={self._timeout_s}")


class WatchedSender(BucketedWeightSender):
    """verl's sender on a `_WatchedSocket`."""

    socket: Any

    def __init__(self, receiver: ReceivingEngine, *, timeout_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._receiver = receiver
        self._timeout_s = timeout_s

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket = _WatchedSocket(self.socket, self._receiver, timeout_s=self._timeout_s)

    def _direct_send_large_weight(self, name: str, weight: torch.Tensor) -> None:
        """A weight larger than the bucket goes as a handle to device memory: one from Ray's store is in host memory."""
        super()._direct_send_large_weight(name, weight.to(self.buffer.device))


class WeightSender(ServerAdapter):
    """verl's adapter of a training worker to its engine, which may be dead at any time, and silent.

    It meets the engine at its run's own socket, proves what it sends, and tells the engine over Ray what to expect. An
    engine that listens to another run raises `WeightsMismatch`, here as well.

    Attributes:
        as_sent: what weights go through first. Adapters are small, and stay as they are.
    """

    zmq_handle: str
    as_sent: WeightFilter = staticmethod(unchanged)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bucket_mb: int = self.config.checkpoint_engine.update_weights_bucket_megabytes
        self._timeout_s: float = self.config.custom[CUSTOM_OPTIONS]["engine_timeout_s"]
        self._servers: list[ActorHandle] = []
        self._receiver: ReceivingEngine | None = None
        self._is_lost = False
        folder = sockets_folder()
        self.zmq_handle = private_handle(self.zmq_handle, folder)
        self._run = run_name(folder)

    async def resume(self, tags: list[str]) -> None:
        resume = super().resume
        await self._with_engine(lambda: self._insist(lambda: resume(tags)))

    async def release(self) -> None:
        release = super().release
        await self._with_engine(lambda: self._insist(release))

    async def update_weights(
        self, weights: Any, global_steps: int | None = None, wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        assert wire_format == "named_tensors", f"wire_format={wire_format}: engines share the trainer's GPUs"
        is_adapter = kwargs.get("peft_config") and kwargs.get("base_sync_done")
        sent = weights if is_adapter else self.as_sent(weights)
        await self.pass_on(with_proof(sent, run=self._run, version=global_steps), version=global_steps, **kwargs)

    @torch.no_grad()
    async def pass_on(self, weights: AsyncIterator[NamedTensor], *, version: int | None, **kwargs: Any) -> None:
        """Send what has its proof already.

        Raises:
            RayTaskError: when the engine fails to load what it was sent, and lives.
        """
        expected = {"expected_run": self._run, "expected_version": version, "use_shm": self.use_shm}
        await self._with_engine(lambda: self._transfer(weights, version, kwargs | expected))
        async for _ in weights:
            pass

    async def _transfer(self, weights: AsyncIterator[NamedTensor], version: int | None, kwargs: dict[str, Any]) -> None:
        assert self._receiver is not None
        received = await self._execute_method("update_weights_from_ipc", non_block=True, kwargs=kwargs)
        if received is not None:  # this rank is the one that talks to the engine's server
            self._receiver.follow(received.future())
        sender = WatchedSender(
            self._receiver,
            timeout_s=self._timeout_s,
            zmq_handle=self.zmq_handle,
            bucket_size_mb=self.bucket_mb,
            use_shm=self.use_shm,
        )
        await sender.async_send_weights(weights)
        if received is not None:
            await self._in_time(received)
            await self._insist(self.server_handle.clear_kv_cache.remote)
            if version is not None:
                await self._insist(lambda: self.server_handle.set_global_steps.remote(version))

    async def _with_engine(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make a call, unless the engine is lost; give the engine up if it dies or is silent meanwhile."""
        if self._is_lost:
            return
        try:
            if self._receiver is None:  # engines are launched after this worker
                self._servers = self._find_servers()
                self._receiver = ReceivingEngine(self._servers)
            await call()
        except (_EngineLost, RayActorError) as error:
            self._give_up(error)

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Make a call that may arrive twice, again while the engine cannot be reached."""
        await self._in_time(insist(call))

    async def _in_time(self, answer: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await answer
        except TimeoutError:
            raise _EngineLost(f"has not answered within async_dapo.engine_timeout_s={self._timeout_s}") from None

    def _find_servers(self) -> list[ActorHandle]:
        config = self.config
        ranks = config.tensor_model_parallel_size * config.data_parallel_size * config.pipeline_model_parallel_size
        nodes = max(1, ranks // int(os.environ["RAY_LOCAL_WORLD_SIZE"]))
        prefix = f"{self._get_server_name_prefix()}server_{self.replica_rank}"
        try:
            return [ray.get_actor(f"{prefix}_{node}") for node in range(nodes)]
        except ValueError as error:
            raise _EngineLost(f"is dead: {error}") from error

    def _give_up(self, error: Exception) -> None:
        """The load balancer learns of it from the death of the servers; the trainer ends their processes."""
        self._is_lost = True
        logger.critical("engine %d is given up, and gets no more weights: %s", self.replica_rank, error)
        for server in self._servers:
            ray.kill(server)
