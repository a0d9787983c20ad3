"""The training worker's end of a weight transfer to its own run's engine: it ends with that, or at a time limit.

verl's waits without limit for an engine to take the weights. Every rank gathers every tensor together with the others,
so a rank whose engine is lost goes on gathering, and discards the weights. Ray is asked before each call to an engine
whether it is dead. One that dies while it takes weights is given up at the time limit.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import ray
import torch
import zmq
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from ..runtime.aio import RECONNECT_S
from .stream import CUSTOM_OPTIONS, NamedTensor, private_handle, run_name, sockets_folder, with_proof

logger = logging.getLogger(__name__)


class _EngineLost(Exception):
    """The engine is dead, or has not answered in time."""


class TimedSender(BucketedWeightSender):
    """verl's sender, which raises `zmq.Again` where the engine does not take in time what is sent, or does not answer.

    Args:
        timeout_s: longest wait for either [s].
    """

    socket: Any

    def __init__(self, *, timeout_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._timeout_s = timeout_s

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket.rcvtimeo = self.socket.sndtimeo = int(1000 * self._timeout_s)
        self.socket.linger = 0

    def _direct_send_large_weight(self, name: str, weight: torch.Tensor) -> None:
        """A weight larger than the bucket goes as a handle to device memory: one from Ray's store is in host memory."""
        super()._direct_send_large_weight(name, weight.to(self.buffer.device))


class WeightSender(ServerAdapter):
    """verl's adapter of a training worker to its engine, which may be dead at any time, and silent.

    It meets the engine at its run's own socket, proves what it sends, and tells the engine over Ray what to expect. An
    engine that listens to another run raises `WeightsMismatch`, here as well.
    """

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeout_s: float = self.config.custom[CUSTOM_OPTIONS]["engine_timeout_s"]
        self._servers: list[ActorHandle] = []
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
        await self.pass_on(with_proof(weights, run=self._run, version=global_steps), version=global_steps, **kwargs)

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
        # None for a rank that does not talk to the engine's server.
        received = await self._execute_method("update_weights_from_ipc", non_block=True, kwargs=kwargs)
        answer = None if received is None else received.future()
        sender = TimedSender(
            timeout_s=self._timeout_s,
            zmq_handle=self.zmq_handle,
            bucket_size_mb=self.config.checkpoint_engine.update_weights_bucket_megabytes,
            use_shm=self.use_shm,
        )
        try:
            await sender.async_send_weights(weights)
        except zmq.Again:
            if answer is not None and answer.done():
                answer.result()  # raises why the engine takes no more
            raise _EngineLost(f"has not taken weights within async_dapo.engine_timeout_s={self._timeout_s}") from None
        if received is not None:
            await self._in_time(received)
            await self._insist(self.server_handle.clear_kv_cache.remote)
            if version is not None:
                await self._insist(lambda: self.server_handle.set_global_steps.remote(version))

    async def _with_engine(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make a call, unless the engine is lost; give the engine up if it is dead or silent."""
        if self._is_lost:
            return
        try:
            self._servers = self._find_servers()  # engines are launched after this worker
            await call()
        except (_EngineLost, RayActorError) as error:
            self._give_up(error)

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Make a call that may arrive twice, again while the engine cannot be reached."""

        async def repeated() -> None:
            while True:
                try:
                    return await call()
                except ActorUnavailableError:
                    await asyncio.sleep(RECONNECT_S)

        await self._in_time(repeated())

    async def _in_time(self, answer: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await answer
        except TimeoutError:
            raise _EngineLost(f"has not answered within async_dapo.engine_timeout_s={self._timeout_s}") from None

    def _find_servers(self) -> list[ActorHandle]:
        """The engine's server actors, one a node; Ray finds none that is dead."""
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
