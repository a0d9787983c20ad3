"""A training worker's weight transfer when the engine at its other end is dead, dies, hangs or refuses."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from recipe.async_dapo.runtime import aio
from recipe.async_dapo.weights import adapter as adapter_module
from recipe.async_dapo.weights.adapter import ReceivingEngine, WeightSender

from ..support.weight_ends import Call

PATIENCE_S = 60.0
TENSORS = [(f"layer-{k}", torch.full((1000,), float(k))) for k in range(600)]  # more than a bucket of 1 MB


class FakeServer:
    """A server actor's handle: its methods are `.remote()` calls, each in `calls`. They are ended by hand."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Call]] = []
        self.is_killed = False

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Call:
            call = Call(Future())
            self.calls.append((method, call))
            if method in ("clear_kv_cache", "set_global_steps"):
                call.future().set_result(None)
            return call

        return SimpleNamespace(remote=remote)

    def call(self, method: str) -> Call:
        return next(call for name, call in reversed(self.calls) if name == method)

    def named(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)


class Stream:
    """The weights, one after the other; every rank has to take all of them."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for item in TENSORS:
            self.taken += 1
            yield item


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer()
    kill = lambda handle: setattr(handle, "is_killed", True)  # noqa: E731
    monkeypatch.setattr(adapter_module, "ray", SimpleNamespace(get_actor=lambda name: server, kill=kill))
    monkeypatch.setenv("RAY_LOCAL_WORLD_SIZE", "1")
    return server


def make_adapter(folder: Path, server: FakeServer, *, timeout_s: float = PATIENCE_S) -> WeightSender:
    adapter = object.__new__(WeightSender)
    adapter.config = SimpleNamespace(
        tensor_model_parallel_size=1,
        data_parallel_size=1,
        pipeline_model_parallel_size=1,
        free_cache_engine=True,
        get=lambda key, default: default,
    )
    adapter.replica_rank, adapter.rollout_rank = 3, 0
    adapter._has_server, adapter.server_handle = True, server
    adapter.use_shm, adapter.zmq_handle = True, f"ipc://{folder}/socket"
    adapter._timeout_s, adapter._servers, adapter._receiver, adapter._is_lost = timeout_s, [], None, False
    adapter._run, adapter.bucket_mb = "session/job", 1
    return adapter


def update(adapter: WeightSender, stream: Stream, *, meanwhile: Any = None) -> None:
    """A weight update; `meanwhile` runs in a thread of its own, as the engine does."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await adapter.update_weights(stream, global_steps=7)

    thread = threading.Thread(target=meanwhile or (lambda: None))
    thread.start()
    try:
        asyncio.run(main())
    finally:
        thread.join()


def receive_one_bucket(adapter: WeightSender) -> None:
    """An engine that takes the buffer and its first filling, and then answers no more."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.connect(adapter.zmq_handle)
        socket.recv_pyobj()
        socket.send(b"")
        assert not socket.recv_pyobj()["is_last"]


def test_given_an_engine_that_dies_before_it_takes_anything_then_the_rank_goes_on_with_the_others(tmp_path, server):
    adapter, stream = make_adapter(tmp_path, server), Stream()
    update(adapter, Stream(), meanwhile=lambda: die_once_called(server))
    update(adapter, stream)
    assert stream.taken == len(TENSORS) and server.named("collective_rpc") == 1
    asyncio.run(adapter.resume(["weights"]))
    assert server.named("wake_up") == 0


def die_once_called(server: FakeServer) -> None:
    wait_for_call(server)
    server.call("until_death").future().set_exception(ActorDiedError())


def wait_for_call(server: FakeServer) -> None:
    while not server.named("collective_rpc"):  # the adapter calls in another thread
        threading.Event().wait(0.001)


def test_given_an_engine_that_dies_in_the_middle_then_the_rank_takes_all_tensors_none_the_less(tmp_path, server):
    adapter, stream = make_adapter(tmp_path, server), Stream()

    def engine() -> None:
        receive_one_bucket(adapter)
        server.call("until_death").future().set_exception(ActorDiedError())

    update(adapter, stream, meanwhile=engine)
    assert stream.taken == len(TENSORS)
    assert server.is_killed and server.named("set_global_steps") == 0


def test_given_an_engine_that_never_takes_weights_then_it_is_ended_at_the_limit(tmp_path, server, caplog) -> None:
    adapter, stream = make_adapter(tmp_path, server, timeout_s=0.05), Stream()
    update(adapter, stream)
    assert stream.taken == len(TENSORS) and server.is_killed
    assert "engine 3" in caplog.text and "async_dapo.engine_timeout_s=0.05" in caplog.text


def test_given_an_engine_that_never_wakes_up_then_it_is_ended_at_the_limit(tmp_path, server) -> None:
    adapter = make_adapter(tmp_path, server, timeout_s=0.05)
    asyncio.run(adapter.resume(["weights"]))
    assert server.named("wake_up") == 1 and server.is_killed


def test_given_an_engine_that_cannot_be_reached_for_a_while_then_it_is_asked_again_and_not_lost(
    tmp_path, server, monkeypatch
) -> None:
    monkeypatch.setattr(adapter_module, "RECONNECT_S", 0.0)
    monkeypatch.setattr(aio, "RECONNECT_S", 0.0)
    adapter = make_adapter(tmp_path, server)

    def engine() -> None:
        for attempt in (1, 2):
            while server.named("wake_up") < attempt:  # the adapter calls in another thread
                threading.Event().wait(0.001)
            cut_off = ActorUnavailableError("cut off", None)
            call = server.call("wake_up").future()
            call.set_exception(cut_off) if attempt == 1 else call.set_result(None)

    thread = threading.Thread(target=engine)
    thread.start()
    asyncio.run(adapter.resume(["weights"]))
    thread.join()
    assert server.named("wake_up") == 2 and not server.is_killed


def test_given_an_engine_that_was_dead_at_the_first_update_then_the_rank_goes_on_with_the_others(
    tmp_path, server, monkeypatch
) -> None:
    def get_actor(name: str) -> None:
        raise ValueError(f"Failed to look up actor with name '{name}'")

    monkeypatch.setattr(adapter_module.ray, "get_actor", get_actor)
    adapter, stream = make_adapter(tmp_path, server), Stream()
    update(adapter, stream)
    assert stream.taken == len(TENSORS) and server.calls == []


def test_given_an_engine_that_fails_to_load_the_weights_then_its_error_is_raised(tmp_path, server) -> None:
    adapter = make_adapter(tmp_path, server)
    broken = RayTaskError("collective_rpc", "ValueError: shapes differ", ValueError()).as_instanceof_cause()

    def engine() -> None:
        wait_for_call(server)
        server.call("collective_rpc").future().set_exception(broken)

    with pytest.raises(ValueError, match="shapes differ"):
        update(adapter, Stream(), meanwhile=engine)
    assert not server.is_killed


def test_given_a_connection_that_breaks_then_the_engine_is_watched_again_and_not_lost(monkeypatch) -> None:
    monkeypatch.setattr(adapter_module, "RECONNECT_S", 0.0)
    monkeypatch.setattr(aio, "RECONNECT_S", 0.0)
    server = FakeServer()
    receiver = ReceivingEngine([server])
    server.call("until_death").future().set_exception(ActorUnavailableError("cut off", None))
    while server.named("until_death") < 2:  # a timer's thread watches again
        threading.Event().wait(0.001)
    assert receiver.failure is None
    server.call("until_death").future().set_exception(ActorDiedError())
    assert isinstance(receiver.failure, ActorDiedError)
