"""All servers of a rehearsal, in one process: verl's server class and this recipe's, on emulated engines.

verl starts an actor for every server. Here one actor holds them all, as an engine that only takes time needs no process
of its own; what verl gets in place of an actor's handle names the server in every call (`host_actor.py`).
"""

import asyncio
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig
from verl.workers.config import HFModelConfig
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from ...async_dapo.core.concurrency import EngineLoad
from ...async_dapo.engines.server import AsyncDAPOServer
from ..plan.engine import Engine
from .answers import AnswerBook, vocabulary_of
from .engine import EmulatedEngine
from .options import CompressedClock, RehearsalOptions, make_clock

SAMPLING_S = 0.25  # between two samples [real s]

GATE_S = 60.0  # how long verl's server waits for requests that are not in the batch yet, before it aborts [virtual s]


class _EngineRecord:
    """Writes what the engines did over time, as lines of JSON: samples every engine now and then.

    A line holds the virtual time, for every engine its running and waiting requests, and how late the changes of the
    batch since the last line were noticed [virtual s].
    """

    def __init__(self, path: Path, clock: CompressedClock) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", buffering=1 << 16)
        self._clock = clock
        self._engines: dict[int, EmulatedEngine] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, rank: int, engine: EmulatedEngine) -> None:
        self._engines[rank] = engine
        if self._timer is None:
            self._sample()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._file.close()

    def _sample(self) -> None:
        now_s = self._clock.now_s()
        engines = [engine for _, engine in sorted(self._engines.items())]
        late_s = [round(late, 3) for engine in engines for late in engine.take_lateness()]
        line = {
            "time_s": round(now_s, 3),
            "running": [engine.model.num_running for engine in engines],
            "waiting": [engine.model.num_waiting for engine in engines],
            "late_s": late_s,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._timer = asyncio.get_running_loop().call_later(SAMPLING_S, self._sample)


class _Emulated(vLLMHttpServer):
    """What a server does otherwise when its engine is emulated."""

    def __init__(self, *, engine: EmulatedEngine, model_config: HFModelConfig, **arguments: Any) -> None:
        self._loaded_model_config = model_config
        super().__init__(model_config=model_config, **arguments)
        self.emulated = engine

    def _init_model_config(self, model_config: Any) -> HFModelConfig:
        return self._loaded_model_config

    async def launch_server(self, *_: Any, **__: Any) -> None:
        self.engine = self.emulated
        self._server_port = self.replica_rank + 1

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self.engine.wake_up(tags=tags)


class EmulatedVerlServer(_Emulated):
    """verl's server, whose wait before an abort passes in virtual time."""

    def __init__(self, *, clock: CompressedClock, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._clock = clock

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Requests that wait inside the engine are not admitted yet: verl's server waits for them."""
        self._submission_paused = True
        self._rejecting = reject_request
        self._resume_event.clear()
        try:
            await asyncio.wait_for(self.emulated.wait_admitted(), GATE_S / self._clock.speedup)
        except TimeoutError:
            self.emulated.report_admissions()
        return await super().abort_all_requests(reset_prefix_cache, reject_request)


class EmulatedRecipeServer(_Emulated, AsyncDAPOServer):
    """This recipe's server: its gate, stamps, aborts and kept requests are the production code.

    Args:
        update_s: what an engine that has GPUs of its own takes for new weights [virtual s].
    """

    def __init__(self, *, clock: CompressedClock, update_s: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._clock, self._update_s = clock, update_s

    async def take_weights(self, version: int, buckets: Sequence[ray.ObjectRef]) -> None:
        """As the worker beside such an engine."""
        await asyncio.sleep(self._clock.real_until(self._clock.now_s() + self._update_s))
        await self.clear_kv_cache()
        await self.set_global_steps(version)

    async def launch_server(self, *_: Any, **__: Any) -> None:
        await super().launch_server()
        self._meter = ModelMeter(self.emulated.model)
        self.stamp(self.emulated)


class ModelMeter:
    """What vLLM's `LoadMeter` is to a real engine."""

    def __init__(self, model: Engine) -> None:
        self._model = model

    def reset(self) -> None:
        self._model.forget_load()

    def samples(self) -> None:
        """A rehearsal has a record of its own."""
        return

    def load(self) -> EngineLoad:
        return self._model.load


class ServerHost:
    """Holds all servers, in the process of a `HostActor`.

    Args:
        config: of the whole run.
        is_recipe: whose servers they are: this recipe's, or verl's.
    """

    def __init__(self, config: DictConfig, is_recipe: bool) -> None:
        from verl.utils.config import omega_conf_to_dataclass

        self._options = RehearsalOptions.from_hydra(config)
        self._is_recipe = is_recipe
        self._clock = make_clock(config)
        self._model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model, dataclass_type=HFModelConfig)
        self._scenario = self._options.scenario(config)
        self._step_cost = self._options.step_cost(config, is_recipe=is_recipe)
        self._book = AnswerBook(
            self._scenario.lengths,
            self._scenario.valid_share,
            vocabulary_of(self._model_config.tokenizer),
            limit_tok=self._scenario.max_response_length,
            n=self._scenario.rollout_n,
            seed=self._scenario.seed,
        )
        self._record = _EngineRecord(self._options.engines_file, self._clock)
        self._servers: dict[int, _Emulated] = {}

    async def launch(self, rank: int, **arguments: Any) -> None:
        """Start the server of a replica; `arguments` are those of verl's server class."""
        model = Engine(self._step_cost, max_num_seqs=self._scenario.max_num_seqs)
        engine = EmulatedEngine(model, self._book, self._clock, self._scenario.tools())
        arguments |= {"engine": engine, "model_config": self._model_config, "replica_rank": rank}
        if self._is_recipe:
            update_s = self._scenario.constants.stop_s + self._scenario.transfer_s
            self._servers[rank] = EmulatedRecipeServer(clock=self._clock, update_s=update_s, **arguments)
        else:
            self._servers[rank] = EmulatedVerlServer(clock=self._clock, **arguments)
        await self._servers[rank].launch_server()
        self._record.watch(rank, engine)

    async def call(self, rank: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = getattr(self._servers[rank], method)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def close(self) -> None:
        self._record.close()
