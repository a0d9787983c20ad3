"""This recipe's trainer loop, with modelled seconds in place of the training itself."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import ray
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import ResourcePoolManager
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.ray_utils import auto_await
from verl.utils.tracking import Tracking
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutMode, RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from ...async_dapo import store
from ...async_dapo.runtime.aio import await_all
from ...async_dapo.training.trainer import AsyncDAPOTrainer
from ..plan.costs import TrainingCost
from .host_actor import HOST_NAME, ServerHandle, start_host
from .options import CompressedClock, RehearsalOptions, make_clock
from .worker import EmulatedRank


class EmulatedReplica(vLLMReplica):
    """A replica whose server is one of the host's; it shares no GPU with a rank of the trainer."""

    async def init_standalone(self) -> None:
        self.rollout_mode = RolloutMode.HYBRID
        await self.launch_servers()

    async def launch_servers(self) -> None:
        host = ray.get_actor(HOST_NAME)
        await host.launch.remote(
            self.replica_rank,
            config=self.config,
            rollout_mode=self.rollout_mode,
            workers=[],
            node_rank=0,
            gpus_per_node=self.gpus_per_replica_node,
            nnodes=1,
            cuda_visible_devices="",
        )
        handle = ServerHandle(host, self.replica_rank)
        self.servers = self.workers = [handle]
        self._server_handle = handle
        self._server_address = f"rehearsed-{self.replica_rank}"

    async def install_weights(self, version: int | None) -> None:
        """What a weight update does to a server, but for the weights."""
        server = self.servers[0]
        await server.wake_up.remote()
        await server.clear_kv_cache.remote()
        if version is not None:
            await server.set_global_steps.remote(version)


class TrainingSchedule:
    """When the trainer's work between two rollouts would be done: adds up modelled seconds and waits for them to pass.

    What this process really does meanwhile (data in and out of TransferQueue, advantages) is part of them: it is only
    late where that takes longer.
    """

    def __init__(self, clock: CompressedClock) -> None:
        self._clock = clock
        self._due_s = 0.0

    def begin(self) -> None:
        """The modelled work begins now."""
        self._due_s = self._clock.now_s()

    def spend(self, seconds: float) -> float:
        """Wait until so many more virtual seconds have passed. Returns the virtual time."""
        self._due_s += seconds
        time.sleep(self._clock.real_until(self._due_s))
        return self._clock.now_s()

    @property
    def late_s(self) -> float:
        """How long ago all modelled work was due [virtual s]."""
        return max(0.0, self._clock.now_s() - self._due_s)


class TimedRanks:
    """verl's worker group of `EmulatedRank`, whose passes over a batch end when a real one's would."""

    def __init__(self, workers: Any, schedule: TrainingSchedule, cost: TrainingCost) -> None:
        self._workers, self._schedule, self._cost = workers, schedule, cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)

    def compute_log_prob(self, batch: KVBatchMeta) -> Any:
        return self._timed(self._workers.compute_log_prob, batch, self._cost.log_prob_s)

    def compute_ref_log_prob(self, batch: KVBatchMeta) -> Any:
        return self._timed(self._workers.compute_ref_log_prob, batch, self._cost.log_prob_s)

    def update_actor(self, batch: KVBatchMeta) -> Any:
        return self._timed(self._workers.update_actor, batch, self._cost.train_s)

    def _timed(self, call: Callable[[KVBatchMeta], Any], batch: KVBatchMeta, cost: Callable[..., float]) -> Any:
        result = call(batch)
        lens_tok = [tag["seq_len"] for tag in batch.tags if not store.is_padding(tag)]
        self._schedule.spend(cost(float(sum(lens_tok)), float(sum(n * n for n in lens_tok))))
        return result


class EmulatedWeightSync(CheckpointEngineManager):
    """Weight updates that take their seconds and change the servers' version."""

    schedule: TrainingSchedule
    update_s: float

    @auto_await
    async def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        await asyncio.to_thread(self.schedule.spend, self.update_s)
        await await_all(replica.install_weights(global_steps) for replica in self.replicas)
        return {}


class EmulatedTraining(PPOTrainer):
    """What a trainer does otherwise in a rehearsal: one process stands for all ranks, another one for all servers.

    Mixed into a trainer class. verl ties an engine to the ranks that share its GPUs; here the engines are started as
    verl's stand-alone ones are, and the trainer has no engines of its own (`_enable_hybrid_replicas`).
    """

    _enable_hybrid_replicas = False
    _ended_s: float | None = None  # of the step before, or of the validation after it [virtual s]
    actor_rollout_wg: Any
    ref_policy_wg: Any

    def __init__(self, config: DictConfig) -> None:
        self._rehearsal = RehearsalOptions.from_hydra(config)
        self._scenario = self._rehearsal.scenario(config)
        self._training_cost = self._scenario.training_cost()
        self._clock = make_clock(config)
        self._schedule = TrainingSchedule(self._clock)
        self._spans = self._rehearsal.spans_file.open("w", buffering=1)
        super().__init__(config)

    def _init_resource_pool_mgr(self) -> None:
        PPOTrainer._init_resource_pool_mgr(self)  # whatever worker class a trainer wants, it is emulated
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(EmulatedRank)
        self.resource_pool_manager = ResourcePoolManager({"global_pool": [1]}, mapping=self.mapping)

    def _get_n_gpus_for_throughput(self) -> int:
        return self._scenario.num_gpus

    def _setup(self) -> None:
        RolloutReplicaRegistry.register("vllm", lambda: EmulatedReplica)
        self._host = start_host(self.config, num_servers=self._scenario.num_servers)
        super()._setup()
        self._start_engines()
        self._time_ranks()
        self._schedule.begin()

    def _start_engines(self) -> None:
        self.llm_server_manager = LLMServerManager.create(config=self.config)
        self.checkpoint_manager = sync = EmulatedWeightSync(
            config=omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine),
            actor_wg=self.actor_rollout_wg,
            replicas=self.llm_server_manager.get_replicas(),
        )
        sync.schedule, sync.update_s = self._schedule, self._scenario.update_s
        sync.sleep_replicas()

    def _time_ranks(self) -> None:
        """What asks the ranks for a pass over a batch waits for its seconds. One worker group may have two names."""
        workers = self.actor_rollout_wg
        self.actor_rollout_wg = self._timed(workers)
        if self.use_reference_policy:
            is_shared = self.ref_policy_wg is workers
            self.ref_policy_wg = self.actor_rollout_wg if is_shared else self._timed(self.ref_policy_wg)

    def _timed(self, workers: Any) -> TimedRanks:
        return TimedRanks(workers, self._schedule, self._training_cost)

    def fit(self, agent_loop_manager: Any) -> None:
        super().fit(agent_loop_manager)
        self._spans.close()

    def on_step_begin(self) -> None:
        self._rollout_began_s = self._clock.now_s()
        super().on_step_begin()

    def on_sample_end(self) -> None:
        super().on_sample_end()
        self._schedule.begin()
        self._rollout_ended_s = self._clock.now_s()

    def on_step_end(self) -> None:
        super().on_step_end()
        self._write_span()
        self._ended_s = self._clock.now_s()

    def on_validate_end(self) -> None:
        super().on_validate_end()
        self._ended_s = self._clock.now_s()

    def _write_span(self) -> None:
        """A line a step: what it took, and how late trainer and engines were in it [virtual s]. What the trainer does
        between two steps is not modelled."""
        began_s = self._rollout_began_s if self._ended_s is None else self._ended_s
        line = {
            "step": self.global_steps,
            "step_s": self._clock.now_s() - began_s,
            "rollout_s": self._rollout_ended_s - self._rollout_began_s,
            "trainer_late_s": self._rollout_began_s - began_s + self._schedule.late_s,
            "engines_late_s": ray.get(self._host.take_lateness.remote()),
        }
        self._spans.write(json.dumps(line) + "\n")


class RehearsedAsyncDAPO(EmulatedTraining, AsyncDAPOTrainer):
    """This recipe's trainer, rehearsed."""

    def _extend(self, tracking: Tracking) -> None:
        """The line a step is in virtual seconds, as the result is."""
        super()._extend(tracking)
        step_log: Any = self.replay_buffer.observers.get("loggers")
        if step_log is not None:
            step_log.speedup = self._clock.speedup
