"""A vLLM server that can be stopped at once and that says which policy version sampled each token."""

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
from verl.workers.rollout.replica import RolloutMode, TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.platforms import current_platform
from vllm.v1.engine.exceptions import EngineDeadError

from ..core.concurrency import EngineLoad
from ..core.standstill import STANDSTILL_TIMES, Standstill
from ..runtime.logs import show_logs
from ..runtime.verl_version import check_versions
from ..weights.stream import CUSTOM_OPTIONS, FOLDER_VARIABLE, WeightReceiver, sockets_folder, use_for_engine
from ..weights.wire import EngineTypes
from .engine import RequestTable, RunningRequest, StampingEngine
from .load_meter import LoadMeter, Meter
from .processes import EngineProcesses, exception_of
from .protocol import ABORTED, MORE, UNKNOWN, OutputExtra, counts_of, make_output
from .routes import watch_routes

logger = logging.getLogger(__name__)

PAUSE_MODES = ("abort", "hold")


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


class AsyncDAPOServer(vLLMHttpServer):
    """verl's vLLM server with a gate: `stop_generation` interrupts everything, `allow_generation` opens it again.

    An output holds the tokens since the last delivery of the request, its `stop_reason` says whether the request is
    over (`aborted`, `completed`) or still in the engine (`more`: a piece, so that little is lost if this server dies;
    `reattach` goes on with it). `extra_fields` has `segments`, pairs of (policy version, tokens), and the
    engine's own `finish_reason`.
    """

    _server_address: str  # verl's

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_versions()
        super().__init__(*args, **kwargs)
        show_logs()
        self._is_stopped = False
        self._holds = False  # requests are in the engine, which takes no step
        self._delivers = asyncio.Event()
        self._delivers.set()
        self._requests = RequestTable()
        self._standstill = Standstill()
        self.engine: Any = None
        self._meter: Meter | None = None

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

    async def parameter_types(self) -> list[EngineTypes]:
        """Of each process of this engine."""
        types: list[EngineTypes] = await self.engine.collective_rpc("parameter_types")
        return types

    async def ping(self) -> str | None:
        """Answers when the engine core does, between two of its steps; says what is wrong where it stands still."""
        await self.engine.is_sleeping()
        requests = 0 if self._is_stopped else len(self._requests.running())
        now_s = asyncio.get_running_loop().time()
        still_s = self._standstill.look(now_s, requests=requests, outputs=self._requests.chunks)
        if still_s <= STANDSTILL_TIMES * self._own_options["engine_timeout_s"]:
            return None
        return f"answers, but has yielded no token for {still_s:.0f} s, with {requests} requests in flight"

    @property
    def load(self) -> EngineLoad | None:
        """What the engine has reported since generation was allowed; None before there is an engine."""
        return None if self._meter is None else self._meter.load()

    def stamp(self, engine: Any) -> None:
        """Generate through a vLLM engine, and keep a record of what it generates."""
        self.engine = StampingEngine(engine, self._requests, lambda: self.global_steps)
        if self.config.enable_rollout_routing_replay:
            watch_routes(engine.output_processor, self._requests.set_routes)

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        began: int | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """As verl's; `began` as in `RunningRequest`."""
        if self._is_stopped or self._requests.was_aborted_before(request_id):
            return self._empty(ABORTED)
        task = asyncio.ensure_future(super().generate(prompt_ids, sampling_params, request_id, **kwargs))
        self._requests.add(RunningRequest(request_id, task, self._own_options["delivery_tok"], began))
        return await self.reattach(request_id)

    async def reattach(self, request_id: str) -> TokenOutput:
        """Wait for a request that is in the engine: for its end, or its next piece."""
        request = self._requests.get(request_id)
        if request is None:
            return self._empty(UNKNOWN)
        piece = asyncio.ensure_future(request.has_piece.wait())
        try:
            await asyncio.wait({request.finished, piece}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            piece.cancel()
        if request.is_sent_back:
            self._requests.remove(request_id)
            return self._empty(ABORTED)
        if not request.finished.done():
            return request.deliver(MORE, self.load, counts={})
        await self._delivers.wait()
        self._requests.remove(request_id)
        ended = request.finished.result()
        return request.deliver(ended.stop_reason, self.load, counts=counts_of(ended))

    async def stop_generation(self, mode: str = "abort") -> EngineLoad | None:
        """Interrupt every request and refuse further ones. Returns, when the engine is idle, what it has reported.

        Args:
            mode: `abort` ends the requests; `hold` keeps those that have begun in the engine, with their KV cache,
                until `go_on`, and their callers go on waiting. Others would begin under the next weights with what the
                prefix cache has of these: they are sent back.
        """
        assert mode in PAUSE_MODES, f"mode={mode}: must be one of {PAUSE_MODES}"
        self._is_stopped = True
        try:
            if mode == "hold":
                await self.engine.pause_generation(mode="keep", clear_cache=False)
                self._holds = True
                await self._send_back_what_has_not_begun()
                if self._requests.is_aborting:  # a stop that came meanwhile aborts them
                    await self._take_steps()
            elif self._requests.running():
                await self._abort_all()
            return self._load_of_round()
        finally:  # the answer that the engine is idle goes out first: it would queue behind what was interrupted
            asyncio.get_running_loop().call_soon(self._delivers.set)

    def _load_of_round(self) -> EngineLoad | None:
        return None if self._meter is None else self._meter.load_of_round()

    async def _send_back_what_has_not_begun(self) -> None:
        not_begun = [request for request in self._requests.running() if not request.has_begun]
        for request in not_begun:
            request.is_sent_back = request.is_aborted = True  # also what the engine does not know yet
        await self.engine.abort([request.request_id for request in not_begun])

    async def _abort_all(self) -> None:
        running = self._requests.running()
        self._requests.is_aborting = True
        self._delivers.clear()
        await self.engine.abort([request.request_id for request in running])
        await self._take_steps()  # what the engine was admitting is aborted at its first token
        await asyncio.wait([request.finished for request in running])

    async def _take_steps(self) -> None:
        """Of an engine that holds requests."""
        if self._holds:
            self._holds = False
            await self.engine.resume_generation()

    async def allow_generation(self) -> EngineLoad | None:
        """Open the gate. Returns what is known of the engine, which counts from now on."""
        if self._meter is not None:
            self._meter.reset()
        return await self.go_on()

    async def go_on(self) -> EngineLoad | None:
        """As `allow_generation`, after a stop in the middle of what is counted."""
        self._requests.is_aborting = False
        self._is_stopped = False  # before anything is awaited: a stop that comes meanwhile holds
        await self._take_steps()
        return self.load

    async def turn_over(self) -> EngineLoad | None:
        """What the engine has reported, which counts anew from now on, while it goes on."""
        load = self._load_of_round()
        if self._meter is not None:
            self._meter.reset()
        return load

    async def abort_requests(self, request_ids: list[str], forget: bool = False) -> None:
        """Interrupt some requests, also those that arrive later than this call.

        Args:
            forget: what they have generated will not be fetched.
        """
        known = self._requests.mark_aborted(request_ids)
        await self.engine.abort(known)
        if forget:
            for request_id in known:
                self._requests.remove(request_id)

    def _empty(self, stop_reason: str) -> TokenOutput:
        extra = OutputExtra(segments=[], finish_reason=None, load=self.load)
        return make_output([], [], stop_reason=stop_reason, extra=extra)


def _end(dead: str) -> NoReturn:
    logger.critical("%s died, and this server with it: clients try another one", dead)
    os._exit(1)  # whatever else it is at
