"""All servers of a rehearsal, in one process: this recipe's server class, on emulated engines.

verl starts an actor for every server. Here one actor holds them all, as an engine that only takes time needs no process
of its own; what verl gets in place of an actor's handle names the server in every call (`host_actor.py`).
"""

import inspect
from typing import Any

from omegaconf import DictConfig
from verl.workers.config import HFModelConfig

from ...async_dapo.core.concurrency import EngineLoad
from ...async_dapo.engines.server import AsyncDAPOServer
from ..plan.engine import Engine
from .answers import AnswerBook, vocabulary_of
from .engine import EmulatedEngine
from .options import RehearsalOptions, make_clock


class EmulatedServer(AsyncDAPOServer):
    """The recipe's server on an emulated engine. Its gate, stamps and aborts are the production code."""

    def __init__(self, *, engine: EmulatedEngine, model_config: HFModelConfig, **arguments: Any) -> None:
        self._loaded_model_config = model_config
        super().__init__(model_config=model_config, **arguments)
        self.emulated = engine

    def _init_model_config(self, model_config: Any) -> HFModelConfig:
        return self._loaded_model_config

    async def launch_server(self, *_: Any, **__: Any) -> None:
        self.engine = self.emulated
        self._server_port = self.replica_rank + 1
        self._meter = ModelMeter(self.emulated.model)
        self.stamp(self.emulated)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await self.engine.wake_up(tags=tags)


class ModelMeter:
    """What vLLM's `LoadMeter` is to a real engine."""

    def __init__(self, model: Engine) -> None:
        self._model = model

    def reset(self) -> None:
        self._model.forget_load()

    def load(self) -> EngineLoad:
        return self._model.load

    def load_of_round(self) -> EngineLoad:
        """A rehearsal has no timeline."""
        return self.load()


class ServerHost:
    """Holds all servers, in the process of a `HostActor`.

    Args:
        config: of the whole run.
    """

    def __init__(self, config: DictConfig) -> None:
        from verl.utils.config import omega_conf_to_dataclass

        options = RehearsalOptions.from_hydra(config)
        self._clock = make_clock(config)
        self._model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model, dataclass_type=HFModelConfig)
        self._scenario = options.scenario(config)
        self._step_cost = options.step_cost(config)
        self._book = AnswerBook(
            self._scenario.lengths,
            self._scenario.valid_share,
            vocabulary_of(self._model_config.tokenizer),
            limit_tok=self._scenario.max_response_length,
            n=self._scenario.rollout_n,
            turns=options.agent_turns or 1,
            seed=self._scenario.seed,
        )
        self._servers: dict[int, EmulatedServer] = {}

    async def launch(self, rank: int, **arguments: Any) -> None:
        """Start the server of a replica; `arguments` are those of verl's server class."""
        model = Engine(self._step_cost, max_num_seqs=self._scenario.max_num_seqs)
        engine = EmulatedEngine(model, self._book, self._clock)
        arguments |= {"engine": engine, "model_config": self._model_config, "replica_rank": rank}
        self._servers[rank] = EmulatedServer(**arguments)
        await self._servers[rank].launch_server()

    async def call(self, rank: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = getattr(self._servers[rank], method)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def take_lateness(self) -> list[float]:
        """Of all engines since the last call [virtual s]."""
        return [late_s for server in self._servers.values() for late_s in server.emulated.take_lateness()]
