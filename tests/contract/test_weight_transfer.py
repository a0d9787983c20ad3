"""Weight transfers through verl's own two ends: runs do not meet, and an engine knows what it was given."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import zmq
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter
from vllm.model_executor.model_loader import utils as loading
from vllm.utils.network_utils import get_open_zmq_ipc_path

from recipe.async_dapo.runtime.logs import LOOK_ABOVE, last_line
from recipe.async_dapo.weights.adapter import WatchedSender
from recipe.async_dapo.weights.stream import (
    Checksum,
    WeightsMismatch,
    WeightsNotLoaded,
    private_handle,
    use_for_engine,
    with_proof,
)

from ..support.weight_ends import NAMES, Model, Run

HANGS_AFTER_MS = 20_000
ROUNDS = 8


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """A transfer that hangs fails instead."""
    context = zmq.Context.instance()
    for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
        context.setsockopt(option, HANGS_AFTER_MS)
    yield
    for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
        context.setsockopt(option, -1)


def test_given_two_first_jobs_on_a_machine_when_both_transfer_at_once_then_each_engine_has_its_own_weights(
    monkeypatch, tmp_path
):
    runs = [Run(monkeypatch, tmp_path / f"session_{k}") for k in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for version in range(ROUNDS):
            values = [version + 0.25, version + 0.75]
            list(threads.map(lambda run, value, v=version: run.transfer(value, version=v), runs, values))
            assert [set(run.loaded.values()) for run in runs] == [{value} for value in values]
            assert [set(run.loaded) for run in runs] == [set(NAMES)] * 2
    assert [os.listdir(tmp_path / f"session_{k}" / "sockets") for k in range(2)] == [[], []], "a socket is left"
    assert [run.sender.server_handle.versions for run in runs] == [list(range(ROUNDS))] * 2


def test_given_another_runs_weights_when_they_are_transferred_then_the_error_names_replica_expected_and_found(
    monkeypatch, tmp_path
):
    run = Run(monkeypatch, tmp_path / "session_1")
    other = Run(monkeypatch, tmp_path / "session_2", job_id="02000000")
    other.sender.zmq_handle = run.sender.zmq_handle
    call = run.sender.server_handle.collective_rpc.remote
    monkeypatch.setattr(other.sender, "server_handle", run.sender.server_handle)

    async def main() -> None:
        weights = [(name, torch.ones(2, 2)) for name in NAMES]
        expects = {"expected_run": run.sender._run, "expected_version": 7, "use_shm": True}
        answer = call("update_weights_from_ipc", timeout=None, args=(), kwargs=expects)
        monkeypatch.setattr(other.sender, "_execute_method", _accept)
        await other.sender.update_weights(weights, global_steps=7)
        await answer

    with pytest.raises(WeightsMismatch) as error:
        asyncio.run(main())
    assert "replica 0, rank 0" in str(error.value)
    assert "expected weights of policy version 7 of run session_1/01000000" in str(error.value)
    assert "found policy version 7 of run session_2/02000000" in str(error.value)


async def _accept(*args: object, **kwargs: object) -> None:
    """Instead of a call to the sender's own engine."""


def test_given_an_older_version_when_it_is_transferred_then_the_trainer_gets_the_error(monkeypatch, tmp_path) -> None:
    run = Run(monkeypatch, tmp_path / "session_1")
    send = run.sender._execute_method

    async def expect_next_version(method: str, *, kwargs: dict, **options: object) -> object:
        return await send(method, kwargs=kwargs | {"expected_version": 2}, **options)

    monkeypatch.setattr(run.sender, "_execute_method", expect_next_version)
    with pytest.raises(WeightsMismatch, match=r"version 2 of .* found policy version 1 of "):
        run.transfer(1.0, version=1)


def test_given_weights_without_a_proof_when_they_are_transferred_then_they_are_refused(monkeypatch, tmp_path) -> None:
    run = Run(monkeypatch, tmp_path / "session_1")
    verls = ServerAdapter.update_weights(run.sender, iter([(name, torch.ones(2, 2)) for name in NAMES]), global_steps=1)
    with pytest.raises(WeightsMismatch, match="found weights without a proof"):
        asyncio.run(verls)


def test_given_weights_that_the_engine_cannot_load_then_the_error_says_why_and_not_how_the_clean_up_failed(
    monkeypatch, tmp_path
) -> None:
    def load_weights(weights: list[tuple[str, torch.Tensor]]) -> None:
        raise KeyError(weights[0][0])

    run = Run(monkeypatch, tmp_path / "session_1")
    monkeypatch.setattr(run.engine.model_runner.model, "load_weights", load_weights)
    with pytest.raises(WeightsNotLoaded) as error:
        run.transfer(1.0, version=3)
    expected = "replica 0, rank 0: could not load weights of version 3: KeyError: 'layer.0.weight'"
    assert last_line("RuntimeError", f"Call to collective_rpc method failed: {error.value}").endswith(
        f"{expected}; {LOOK_ABOVE}"
    )


@pytest.mark.parametrize("own", [{"load_format": "auto"}, None], ids=["of the checkpoint", "of the trainer"])
def test_given_a_head_that_drafts_when_weights_are_transferred_then_it_gets_none_if_it_is_the_checkpoints(
    own, monkeypatch, tmp_path
) -> None:
    run = Run(monkeypatch, tmp_path / "session_1")
    runner, head = run.engine.model_runner, Model()
    runner.drafter = SimpleNamespace(model=head)
    runner.vllm_config.speculative_config = SimpleNamespace(
        method="mtp", draft_load_config=own, draft_model_config=runner.vllm_config.model_config
    )
    packed: list[torch.nn.Module] = []
    monkeypatch.setattr(loading, "process_weights_after_loading", lambda model, *_: packed.append(model))
    run.transfer(1.0, version=1)
    others = [] if own else [head]
    assert packed == [runner.model, *others] and set(run.loaded) == set(NAMES)
    assert set(head.loaded) == (set() if own else set(NAMES))


def test_given_a_weight_in_host_memory_larger_than_the_bucket_when_sent_then_its_handle_is_one_of_device_memory(
    monkeypatch, tmp_path
) -> None:
    """verl's engine can open no other, and its tensors travel through the buffer where they fit into it."""
    handles: list[torch.Tensor] = []
    sent: list[dict] = []
    monkeypatch.setattr(bucketed_weight_transfer, "reduce_tensor", handles.append)
    sender = WatchedSender(Mock(), timeout_s=1.0, zmq_handle=f"ipc://{tmp_path}/socket", bucket_size_mb=1)
    monkeypatch.setattr(sender, "_init_socket", lambda: setattr(sender, "socket", Mock(send_pyobj=sent.append)))
    monkeypatch.setattr(
        sender, "_init_buffer", lambda: setattr(sender, "buffer", torch.empty(2**20, dtype=torch.uint8, device="meta"))
    )
    weights = [("small", torch.ones(8)), ("large", torch.ones(2**20)), ("last", torch.ones(8))]
    asyncio.run(sender.async_send_weights(weights))
    assert [list(message["bucket_meta"]) for message in sent] == [["small"], ["large"], ["last"]]
    assert [(handle.device.type, handle.shape) for handle in handles] == [("meta", (2**20,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_given_a_stream_when_it_arrives_whole_then_the_checksums_agree_and_else_they_do_not(dtype) -> None:
    sent = [("a", torch.ones(3, 100, dtype=dtype).T), ("b", torch.ones((), dtype=dtype)), ("c", torch.empty(0))]
    *arrived, (_, proof) = asyncio.run(_collect(sent))
    changed = arrived[0][0], torch.zeros_like(arrived[0][1])
    for bucket, is_whole in ((arrived, True), (arrived[1:], False), ([changed, *arrived[1:]], False)):
        checksum = Checksum()
        for name, tensor in bucket:
            checksum.add(name, tensor.contiguous())
        assert (bytes(proof.tolist()).decode() == checksum.proof("session_1/01000000", 1)) is is_whole


async def _collect(weights: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    return [item async for item in with_proof(weights, run="session_1/01000000", version=1)]


def test_given_jobs_of_one_cluster_when_they_transfer_then_each_has_its_own_socket() -> None:
    handles = {
        private_handle(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{replica}-rank-{rank}.sock", Path("/sockets"))
        for job in ("01000000", "02000000")
        for replica in (0, 1, 11)
        for rank in (0, 1, 11)
    }
    assert len(handles) == 18
    assert "ipc:///sockets/w01000000-11-1" in handles


def test_given_a_folder_too_long_for_a_socket_when_it_is_asked_for_then_the_error_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="temp-dir"):
        private_handle("ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock", Path("/" + "x" * 100))


def test_given_a_short_and_a_long_folder_when_an_engine_starts_then_vllm_uses_the_short_one_only(monkeypatch):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "as it was before")
    monkeypatch.delenv("VLLM_RPC_BASE_PATH")
    use_for_engine(Path("/" + "x" * 70))
    assert "VLLM_RPC_BASE_PATH" not in os.environ
    use_for_engine(Path("/" + "x" * 69))
    path = get_open_zmq_ipc_path().removeprefix("ipc://")
    assert path.startswith("/xxx") and len(path) == 107
