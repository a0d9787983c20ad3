"""How a vLLM server starts, with the processes of its engine, and ends with them. `server.py` is what it does then."""

import asyncio
import inspect
import logging
import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import ray
import vllm
from verl.utils.import_utils import load_class_from_fqn
from verl.utils.net_utils import is_valid_ipv6_address
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.platforms import current_platform
from vllm.v1.engine.exceptions import EngineDeadError

from ..core.concurrency import EngineLoad
from ..runtime.logs import show_logs
from ..runtime.verl_version import check_versions
from ..weights.stream import CUSTOM_OPTIONS, FOLDER_VARIABLE, WeightReceiver, sockets_folder, use_for_engine
from .load_meter import LoadMeter, Meter
from .processes import EngineProcesses, exception_of

logger = logging.getLogger(__name__)


def in_words(kv_room_tok: int, config: Any) -> str:
    """What an engine is, in a line: verl hides what vLLM logs of it.

    Args:
        config: vLLM's.
    """
    runner = "second" if getattr(config, "use_v2_model_runner", False) else "first"
    scheduling = "asynchronous" if config.scheduler_config.async_scheduling else "synchronous"
    graphs = len(config.compilation_config.cudagraph_capture_sizes or ())
    return (
        f"engine 0: vLLM {vllm.__version__}, {runner} model runner, {scheduling} scheduling, CUDA graphs of {graphs} "
        f"sizes, KV cache of {kv_room_tok:,} tokens in {config.cache_config.cache_dtype}"
    )


def packs_experts(hf_config: Any) -> bool:
    """Whether vLLM's own choice for experts on this GPU lays their weights out anew, so that no update could be loaded:
    from compute capability 10 on.
    """
    text, names = hf_config.get_text_config(), ("num_experts", "n_routed_experts", "num_local_experts")
    capability = current_platform.get_device_capability()
    return bool(capability) and capability.major >= 10 and any(getattr(text, name, None) for name in names)


class StartedServer(vLLMHttpServer):
    """verl's vLLM server with this recipe's worker, load meter and weight receiver; it ends with its engine."""

    _server_address: str  # verl's

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_versions()
        super().__init__(*args, **kwargs)
        show_logs()
        self.engine: Any = None
        self._meter: Meter | None = None

    def stamp(self, engine: Any) -> None:
        """The engine is up."""
        raise NotImplementedError

    async def answer(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """To a call from another process. The engine may know that it is dead before its core's process has ended; a
        caller then learns of this server's death, too.
        """
        try:
            result = getattr(self, name)(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except EngineDeadError:
            _end("the engine")

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        os.environ[FOLDER_VARIABLE] = str(folder := sockets_folder())
        use_for_engine(folder)
        try:
            await super().launch_server(*args, **kwargs)
        except RuntimeError as error:  # vLLM's says no more than that its processes have failed
            if (cause := exception_of(os.getpid())) is None:
                raise
            raise RuntimeError(f"the engine could not start: {cause}") from error

    def _get_worker_extension_cls(self) -> str:
        return f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}"

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        if engine_kwargs.get("moe_backend") in (None, "auto") and packs_experts(self.model_config.hf_config):
            engine_kwargs["moe_backend"] = "triton"

    def _resolve_sleep_level(self) -> int:
        """At level 2 an engine throws its weights away."""
        return 1 if self._own_options.get("keeps_weights") else super()._resolve_sleep_level()

    @property
    def _own_options(self) -> Mapping[str, Any]:
        """Empty where it is no engine of the policy, but a reward model."""
        return (self.config.custom or {}).get(CUSTOM_OPTIONS) or {}

    async def run_server(self, args: Any) -> None:
        name = self._server_address
        if self._needs_no_http:
            self._server_address = "::1" if is_valid_ipv6_address(name) else "127.0.0.1"
        try:
            await super().run_server(args)
        finally:
            self._server_address = name  # with the port it is the server's name, everywhere
        named = self._own_options.get("meter")
        meter_class = LoadMeter if named is None else load_class_from_fqn(named, "load meter")
        self._meter = meter_class.attach(self.engine)
        self.stamp(self.engine)
        if self.replica_rank == 0 and self._own_options:
            logger.info("%s", in_words(self._meter.load().kv_room_tok, self.engine.vllm_config))
        for process in multiprocessing.active_children():
            asyncio.get_running_loop().add_reader(process.sentinel, self._end_with, process)

    @property
    def _needs_no_http(self) -> bool:
        """Trainer and agent loops ask through Ray; reward models and Prometheus are on other nodes as well."""
        is_policy = self.rollout_mode is not RolloutMode.COLOCATED and self._own_options
        return bool(is_policy) and not self.config.prometheus.enable

    def _end_with(self, process: BaseProcess) -> None:
        """A server without its engine core cannot answer: its callers learn of its death instead."""
        _end(f"engine process {process.name} (pid {process.pid})")

    async def processes(self) -> EngineProcesses:
        return EngineProcesses.of_this_server(ray.util.get_node_ip_address())

    async def call_extension(self, name: str, place: str, *args: Any) -> list[Any]:
        """What `WeightReceiver.call_extension` returns in each process of this engine."""
        answers: list[Any] = await self.engine.collective_rpc("call_extension", args=(name, place, *args))
        return answers

    @property
    def load(self) -> EngineLoad | None:
        """What the engine has reported since generation was allowed; None before there is an engine."""
        return None if self._meter is None else self._meter.load()


def _end(dead: str) -> NoReturn:
    logger.critical("%s died, and this server with it: clients try another one", dead)
    os._exit(1)  # whatever else it is at
