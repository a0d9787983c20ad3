"""A whole training run on virtual time: the real replay buffer, manager, coordinator, balancer, workers and clients.

Only engines, rewards, the data plane and Ray itself are stand-ins. The trainer is synchronous, as verl's is: whenever
it waits for Ray, the loop runs.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import get_tensordict

from recipe.async_dapo import store
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.router import router_options
from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinator
from recipe.async_dapo.rollout.manager import AsyncDAPOAgentLoopManager, RoundRecord, make_group
from recipe.async_dapo.training.checkpoints import from_frames, to_frames
from recipe.async_dapo.training.engine_manager import EngineManager
from recipe.async_dapo.training.observer import Observer
from recipe.async_dapo.training.replay_buffer import RoundReplayBuffer

from .client_world import llm_client
from .fakes import FakeHandle, ScriptedServer, log_prob_of, token_at
from .simulated_engines import SimulatedReplica, SimulatedTrainingWorkers
from .simulated_options import MAX_LENGTH_TOK
from .simulated_ray import SimulatedRay
from .simulated_worker import FakeStore, SimulatedWorker, Task
from .simulation import VirtualTimeLoop, end_all

VERLS = SimpleNamespace(backend="naive", custom_backend_module=None)  # options of its checkpoint engines


class Noted(Observer):
    """Notes the round of each batch."""

    def __init__(self, records: list[RoundRecord]) -> None:
        self._records = records

    def batch_made(self, step: int, record: RoundRecord, batch: KVBatchMeta) -> None:
        self._records.append(record)


class Cluster:
    """Runs steps and checks, after each, what must be true after every step."""

    _coordinator_class = EarlyStoppingCoordinator
    _manager_class = AsyncDAPOAgentLoopManager
    versions_may_fall = False  # from one request of a trajectory to the next

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        opts: AsyncDAPOConfig,
        *,
        task: Task | None = None,
        num_servers: int = 2,
        latency_s: float | Callable[[str], float] = 0.01,
    ) -> None:
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.options = opts
        self.task = task or Task()
        self.step_number = 0
        self.num_drawn = 0
        self.trained: list[str] = []
        self.store = FakeStore()
        self.ray = SimulatedRay(self.loop)
        self.ray.stand_in(monkeypatch)
        self.store.stand_in(monkeypatch)
        self.servers = self._make_servers(monkeypatch, num_servers)
        self.server_handles = [FakeHandle(server, latency_s=latency_s) for server in self.servers]
        router = router_options(opts, most_per_server=999)
        named = {f"server-{k}": handle for k, handle in enumerate(self.server_handles)}
        self.balancer = self._make_balancer(named, router)
        self.balancer_handle = FakeHandle(self.balancer, latency_s=latency_s)
        coordinator = self._coordinator_class(self.balancer_handle, opts.stop_timeout_s)
        self.coordinator_handle = FakeHandle(coordinator, latency_s=latency_s)
        self.worker_handles = [self._start_worker(latency_s) for _ in range(opts.num_workers)]
        self.workers: list[SimulatedWorker] = [handle.target for handle in self.worker_handles]
        self.manager = self._start_manager()
        self.buffer = self._make_buffer()
        self.buffer.attach(self.manager)
        self._note_rounds()
        self.training_workers = SimulatedTrainingWorkers(self.loop, self.server_handles)
        self.engines = self._make_engines()

    # ---- what verl's trainer does ----

    def step(self) -> dict[str, float]:
        """One step: rollout, training, weight update."""
        with self.engines.naming_lost_engines():
            metrics = self.sample()
            self.update_weights()
        return metrics

    def steps(self, count: int) -> list[dict[str, float]]:
        return [self.step() for _ in range(count)]

    def sample(self) -> dict[str, float]:
        self.step_number += 1
        self.buffer.open_round(self.step_number)
        batch, metrics = self.buffer.sample(self.step_number, store.TRAIN, self.options.target_valid_groups)
        self.check(batch)
        for key in batch.keys:
            del self.store.rows[store.TRAIN][key]
        self.engines.sleep_replicas()
        return metrics

    def update_weights(self) -> None:
        self.engines.update_weights(self.step_number)
        self.manager.open_engines()

    def validate(self, num_prompts: int) -> KVBatchMeta:
        rows = {
            "uid": [f"val-{self.step_number}-{k}" for k in range(num_prompts)],
            "index": list(range(num_prompts)),
        }
        prompts = get_tensordict(rows, non_tensor_dict={"global_steps": self.step_number, "validate": True})
        self.manager.generate_sequences(prompts)
        return self.buffer.sample(self.step_number, store.VAL, num_prompts)[0]

    def run_for(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def close(self) -> None:
        asyncio.set_event_loop(self.loop)
        end_all(self.loop)

    # ---- what must be true after every rollout ----

    def check(self, batch: KVBatchMeta) -> None:
        uids = self.check_batch(batch)
        stored = {key.split("_")[0] for key in self.store.rows[store.TRAIN]}
        assert stored <= {*uids, *self.buffer.pool.carried_uids}, (
            "answers of a group that starts again are still stored"
        )
        self.check_engines()
        if left := self._own_tasks():
            self.run_for(self.options.engine_timeout_s)  # a server is asked for a sign of life, and again
            left = self._own_tasks()
        assert not left, f"a task of the round is left: {left}"
        if self.task.keeps_state or not self.task.replayable:
            return  # its loops go on
        for worker in self.workers:
            assert not worker.active
            assert self.options.slots_per_worker is None or worker.max_active_groups <= self.options.slots_per_worker

    def check_batch(self, batch: KVBatchMeta) -> list[str]:
        """Its groups."""
        uids = list(dict.fromkeys(key.split("_")[0] for key in batch.keys))
        assert len(uids) == self.options.target_valid_groups
        assert len(batch.keys) == len(uids) * self.options.rollout_n
        assert uids == sorted(uids), "mini-batches in an order of age or completion"
        assert not set(uids) & set(self.trained), "a group was trained twice"
        self.trained += uids
        for key in batch.keys:
            self.check_trajectory(*self.store.rows[store.TRAIN][key])
        self.buffer.check_ledger()
        return uids

    def check_trajectory(self, fields: dict[str, Any], tag: dict[str, Any]) -> None:
        """The response is whole, however often it was interrupted, and every token has its log-prob and version."""
        prompt_ids = fields["prompts"].tolist()
        expected = [token_at(prompt_ids, k) for k in range(self.task.length_of(prompt_ids))]
        assert fields["responses"].tolist() == expected
        assert fields["rollout_log_probs"].tolist() == pytest.approx([log_prob_of(token) for token in expected])
        versions = [version for version, count in tag["segments"] for _ in range(count)]
        assert fields["policy_versions"].tolist() == versions
        assert self.versions_may_fall or versions == sorted(versions)
        assert max(versions) < self.step_number
        if self.options.rollout_strategy in (RolloutStrategy.DISCARD, RolloutStrategy.CONSISTENT):
            assert len(set(versions)) == 1

    def check_engines(self) -> None:
        assert not self.balancer._table.held_lease_ids and not self.balancer._table.num_queued
        alive = [handle.target for handle in self.server_handles if not handle.is_dead]
        assert not [server for server in alive if server.running or server.ended]
        most = self.options.max_loads_per_server or 999
        assert all(server.max_running <= most for server in self.servers)

    # ---- how it is put together ----

    def _make_servers(self, monkeypatch: pytest.MonkeyPatch, count: int) -> list[Any]:
        return [self._make_server() for _ in range(count)]

    def _make_server(self, **about: Any) -> ScriptedServer:
        length_of, delivery_tok = self.task.length_of, self.options.delivery_tok
        return ScriptedServer(length_of, prompt_len_tok=2, token_s=1.0, delivery_tok=delivery_tok, **about)

    def _make_balancer(self, named: dict[str, FakeHandle], router: dict[str, Any]) -> GlobalLoadBalancer:
        return GlobalLoadBalancer(named, router)

    def _make_buffer(self) -> RoundReplayBuffer:
        return RoundReplayBuffer(self.options, self._draw)

    def _make_engines(self) -> EngineManager:
        return EngineManager(VERLS, self.training_workers, manager=self._make_verls_manager(), options=self.options)

    def _make_verls_manager(self) -> Any:
        replicas = self._make_replicas()
        return SimpleNamespace(get_replicas=lambda: replicas, global_load_balancer=self.balancer_handle)

    def _make_replicas(self) -> list[SimulatedReplica]:
        return [SimulatedReplica(k, handle) for k, handle in enumerate(self.server_handles)]

    def _start_worker(self, latency_s: float | Callable[[str], float]) -> FakeHandle:
        client = llm_client(
            self.balancer_handle,
            response_length=MAX_LENGTH_TOK,
            prompt_length=2,
            cleanup_timeout_s=self.options.stop_timeout_s,
            **self._client_options(),
        )
        return FakeHandle(SimulatedWorker(client, self.options, self.task), latency_s=latency_s)

    def _client_options(self) -> dict[str, bool]:
        return {}

    def _start_manager(self) -> AsyncDAPOAgentLoopManager:
        manager = object.__new__(self._manager_class)
        val_kwargs = SimpleNamespace(n=self.options.rollout_n)
        manager.config = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(val_kwargs=val_kwargs))
        )
        manager.agent_loop_workers = self.worker_handles
        manager._options = self.options
        manager._balancer, manager._coordinator = self.balancer_handle, self.coordinator_handle
        manager._round_id, manager._worker_refs, manager._capacity = "", [], None
        self._connect()
        for index, worker in enumerate(self.worker_handles):
            self.ray.get(worker.attach.remote(self.coordinator_handle, index, worker))
        return manager

    def _connect(self) -> None:
        """What the manager connects beside workers: here nothing."""

    def _note_rounds(self) -> None:
        self.specs: list[RoundSpec] = []
        self.records: list[RoundRecord] = []
        open_round = self.manager.open_round

        def noted_open(spec: RoundSpec, groups: Sequence[PromptGroup]) -> None:
            if not spec.validates:
                self.specs.append(spec)
            open_round(spec, groups)

        self.manager.open_round, self.buffer.observers["noted"] = noted_open, Noted(self.records)

    def _draw(self, count: int) -> list[PromptGroup]:
        rows = [{"uid": f"group-{self.num_drawn + k}", "index": self.num_drawn + k} for k in range(count)]
        self.num_drawn += count
        return [make_group(row, n=self.options.rollout_n, step=self.step_number) for row in rows]

    def _own_tasks(self) -> set[str]:
        self.run_for(0.05)  # releases are not awaited by those who send them
        names = {task.get_name() for task in asyncio.all_tasks(self.loop)}
        return {name for name in names if not name.startswith(("remote", "call ", "kept loop ", "watch "))}


def resumed(start: Any, crashed: Cluster) -> Cluster:
    """A new cluster from a checkpoint of another; the engines are empty."""
    saved = list(to_frames(crashed.buffer.state()))
    cluster = start(crashed.options, type(crashed), task=crashed.task)
    cluster.buffer.restore(from_frames(saved))
    carried = cluster.buffer.pool.carried_uids
    rows = crashed.store.rows[store.TRAIN]
    cluster.store.rows[store.TRAIN] = {key: row for key, row in rows.items() if key.split("_")[0] in carried}
    cluster.step_number, cluster.num_drawn, cluster.trained = crashed.step_number, crashed.num_drawn, crashed.trained
    cluster.update_weights()
    return cluster
