"""How long an engine may take to go to sleep, and what it is asked in which order, on a stand-in of a GPU's memory."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.workers import engine_workers
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from recipe.async_dapo.engines.replica import FIRST_SLEEP_TIMES, AsyncDAPOReplica

from ..support import weight_ends
from ..support.scripted_engine import start_server
from ..support.simulation import simulate

LIMIT_S = 120.0
ALL = {"weights", "kv_cache"}
FORGET = "reset the prefix cache"
UPDATE = engine_workers.ActorRolloutRefWorker.update_weights.__wrapped__


def make_replica() -> Any:
    replica: Any = AsyncDAPOReplica.__new__(AsyncDAPOReplica)
    replica.replica_rank, replica.processes, replica._engine_timeout_s = 0, [], LIMIT_S
    return replica


@pytest.mark.parametrize("times", [4, 6])
def test_the_first_sleep_of_an_engine_may_take_longer_than_the_next_ones(monkeypatch, times: int) -> None:
    """`test_cluster_faults.py` has the limit of the next ones."""

    async def sleep(self: Any) -> None:
        await asyncio.sleep(times * LIMIT_S)

    monkeypatch.setattr(vLLMReplica, "sleep", sleep)
    assert FIRST_SLEEP_TIMES == 5, "as the comment of async_dapo.engine_timeout_s says"
    is_late = pytest.raises(TimeoutError, match=r"not gone to sleep within 5 x async_dapo\.engine_timeout_s=120")
    with is_late if times > FIRST_SLEEP_TIMES else nullcontext():
        simulate(make_replica().sleep())


class SleepingEngine:
    """A vLLM engine whose memory is `CuMemAllocator`'s: what is not mapped can be neither written nor read, what is
    mapped cannot be mapped again, and what level 2 has freed comes back empty."""

    def __init__(self) -> None:
        self.mapped = set(ALL)
        self.has_weights = self.is_drained = False
        self.trainer_is_in_memory = True
        self.calls: list[str] = []

    async def wait_for_requests_to_drain(self) -> None:
        self.is_drained = True

    async def sleep(self, *, level: int) -> None:
        assert self.is_drained and self.mapped == ALL
        self.calls.append(f"sleep {level}")
        self.mapped.clear()
        self.has_weights &= level == 1

    async def wake_up(self, *, tags: list[str]) -> None:
        assert not self.mapped & set(tags), "mapped twice"
        assert "kv_cache" not in tags or not self.trainer_is_in_memory, "there is no room beside the trainer"
        self.calls.append(f"wake {' '.join(tags)}")
        self.mapped |= set(tags)

    def load(self) -> None:
        assert "weights" in self.mapped
        self.calls.append("load")
        self.has_weights = True

    async def reset_prefix_cache(self, **_: Any) -> bool:
        self.calls.append(FORGET)
        return True

    async def reset_mm_cache(self) -> None: ...
    async def reset_encoder_cache(self) -> None: ...

    def generate(self) -> None:
        assert self.mapped == ALL and self.has_weights


class Handle(weight_ends.Server):
    """Of a server on that engine, with verl's code and ours."""

    def __init__(self, server: Any, worker: weight_ends.Engine, engine: SleepingEngine) -> None:
        super().__init__(worker)
        self._sleep, self._wake_up, self._clear_kv_cache = server.sleep, server.wake_up, server.clear_kv_cache
        self._wait_for_requests_to_drain = server.wait_for_requests_to_drain
        self._sleeping = engine

    def _collective_rpc(self, method: str, **kwargs: Any) -> weight_ends.Call:
        self._sleeping.load()
        return super()._collective_rpc(method, **kwargs)


@pytest.mark.parametrize(
    ("frees", "calls"),
    [
        (True, ["sleep 2", "wake weights", FORGET, "load", FORGET, "wake kv_cache", FORGET]),
        (False, ["load", FORGET]),
    ],
    ids=["freed", "kept"],
)
def test_given_new_weights_when_they_reach_an_engine_then_it_sleeps_loads_and_wakes_as_a_gpus_memory_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frees: bool, calls: list[str]
) -> None:
    run, engine = weight_ends.Run(monkeypatch, tmp_path), SleepingEngine()
    server = start_server(monkeypatch, engine)
    server.config.free_cache_engine, server.config.engine_kwargs = frees, {}
    server.rollout_mode = RolloutMode.HYBRID
    run.sender.server_handle = handle = Handle(server, run.engine, engine)
    config = SimpleNamespace(**vars(run.sender.config), free_cache_engine=frees)
    run.sender.config = config
    replica = make_replica()
    replica.servers = [handle]

    def weights(**_: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        return ((name, torch.full((64, 256), 3.0)) for name in weight_ends.NAMES), None

    def offload(*_: Any, **__: Any) -> None:
        engine.trainer_is_in_memory = False

    for name, stand_in in {
        "set_expandable_segments": lambda on: None,
        "get_torch_device": lambda: SimpleNamespace(empty_cache=lambda: None, synchronize=lambda: None),
        "log_gpu_memory_usage": lambda *_, **__: None,
    }.items():
        monkeypatch.setattr(engine_workers, name, stand_in)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    worker = SimpleNamespace(
        config=SimpleNamespace(rollout=SimpleNamespace(free_cache_engine=frees, get=lambda *_: "vllm")),
        rollout=run.sender,
        actor=SimpleNamespace(
            engine=SimpleNamespace(get_per_tensor_param=weights, is_param_offload_enabled=True, to=offload)
        ),
        layered_summon=False,
        peft_merge=False,
    )
    if frees:
        asyncio.run(replica.sleep())
        assert not engine.mapped, "the trainer has no memory"
    asyncio.run(UPDATE(worker, global_steps=7, mode="naive"))
    engine.generate()
    assert engine.calls == calls and set(run.loaded.values()) == {3.0}
