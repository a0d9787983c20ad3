"""Both ends of a weight transfer, verl's own code under ours, in one process: what a Ray cluster has, without Ray."""

import asyncio
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from recipe.async_dapo.weights.adapter import ReceivingEngine, WeightSender
from recipe.async_dapo.weights.stream import CUSTOM_OPTIONS, FOLDER_VARIABLE, WeightReceiver

FIRST_JOB = "01000000"  # of every Ray cluster
NAMES = [f"layer.{k}.weight" for k in range(40)]

_NO_CONFIG = SimpleNamespace(
    tensor_model_parallel_size=1,
    data_parallel_size=1,
    pipeline_model_parallel_size=1,
    disaggregation=None,
    layered_summon=False,
    custom={CUSTOM_OPTIONS: {"engine_timeout_s": 60.0}},
    checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=1),
)


class Model(torch.nn.Module):
    model = True  # verl looks for it

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[str, float] = {}

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.loaded |= {name: float(tensor[0, 0]) for name, tensor in weights}


class Engine(WeightReceiver):
    """A vLLM worker with nothing but its end of the transfer. Its address is fixed when it starts, as its process's."""

    def __new__(cls) -> "Engine":
        return object.__new__(cls)

    def __init__(self) -> None:
        plain = SimpleNamespace(quantization=None, dtype=torch.float32)
        vllm_config = SimpleNamespace(speculative_config=None, quant_config=None, model_config=plain)
        self.model_runner = SimpleNamespace(model=Model(), vllm_config=vllm_config)
        self.device = torch.device("cpu")
        self.local_rank = 0
        self._is_qat_model = self._is_modelopt_qat = False
        self._handle = super()._get_zmq_handle()

    def _get_zmq_handle(self) -> str:
        return self._handle


class Call:
    """What `.remote()` returns."""

    def __init__(self, future: Future) -> None:
        self._future = future

    def future(self) -> Future:
        return self._future

    def __await__(self) -> Generator[Any, Any, Any]:
        return asyncio.wrap_future(self._future).__await__()


class Server:
    """The handle of an engine's server: its calls run in a thread, as the engine runs in a process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(1)
        self.versions: list[int] = []  # that it was told

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=getattr(self, f"_{method}"))

    def _collective_rpc(self, method: str, *, timeout: None, args: tuple, kwargs: dict[str, Any]) -> Call:
        return Call(self._threads.submit(getattr(self._engine, method), *args, **kwargs))

    def _until_death(self) -> Call:
        return Call(Future())

    async def _clear_kv_cache(self) -> None: ...

    async def _set_global_steps(self, version: int) -> None:
        self.versions.append(version)


class Run:
    """One run: its trainer's end, and its engine's. `session` is the folder that Ray gave its cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, session: Path, *, job_id: str = FIRST_JOB) -> None:
        sockets = session / "sockets"
        sockets.mkdir(parents=True, exist_ok=True)
        node = {"NodeID": "node", "ObjectStoreSocketName": str(sockets / "plasma_store")}
        context = SimpleNamespace(get_job_id=lambda: job_id, get_node_id=lambda: "node")
        monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "another"}, node])
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        for name, value in {
            "RANK": "0",
            "RAY_LOCAL_WORLD_SIZE": "1",
            "VERL_REPLICA_RANK": "0",
            "VERL_RAY_JOB_ID": job_id,
            FOLDER_VARIABLE: str(sockets),
        }.items():
            monkeypatch.setenv(name, value)
        self.engine = Engine()
        self.sender = WeightSender(config=_NO_CONFIG, model_config=SimpleNamespace(), device_mesh=None)
        self.sender.server_handle = Server(self.engine)
        self.sender._receiver = ReceivingEngine([self.sender.server_handle])

    @property
    def loaded(self) -> dict[str, float]:
        return self.engine.model_runner.model.loaded

    def transfer(self, value: float, *, version: int) -> None:
        """Ends when trainer and engine have ended, with the error of either."""
        weights = ((name, torch.full((64, 256), value)) for name in NAMES)
        asyncio.run(self.sender.update_weights(weights, global_steps=version))
