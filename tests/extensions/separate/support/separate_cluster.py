"""A whole run with engines on GPUs of their own, on virtual time: batches are handed over, and weights travel, while
engines generate. `Cluster` is the run on shared GPUs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from transfer_queue import KVBatchMeta

from recipe.async_dapo import store
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import Placement, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.extensions.separate import engines as separate_engines
from recipe.async_dapo.extensions.separate.balancer import RollingLoadBalancer
from recipe.async_dapo.extensions.separate.coordinator import RollingCoordinator
from recipe.async_dapo.extensions.separate.engines import SeparateEngines
from recipe.async_dapo.extensions.separate.manager import RollingManager
from recipe.async_dapo.extensions.separate.rolling_update import Phase
from recipe.async_dapo.extensions.separate.trainer import RollingReplayBuffer, rolling_update

from ....support.fakes import FakeHandle, RemoteCall, ScriptedServer
from ....support.simulated_cluster import VERLS, Cluster
from ....support.simulated_options import options
from ....support.simulation import REMOTE

SEPARATE = [one for one in RolloutStrategy if one is not RolloutStrategy.DISCARD]
LOOK_S = 0.25  # between two looks at the engines


def separate_options(strategy: RolloutStrategy, **changes: Any) -> AsyncDAPOConfig:
    """As `options`; tokens may be two versions old."""
    defaults = {"max_staleness": 2, "stop_rule": StopRuleName.FIRST_COMPLETED, "extensions": ("separate",)}
    return options(placement=Placement.SEPARATE, rollout_strategy=strategy, **(defaults | changes))


@dataclass(slots=True)
class Seen:
    """What looks at the engines have shown."""

    looks: int = 0
    busy: dict[str, int] = field(default_factory=dict)  # server -> looks at which it was generating
    most_out: int = 0  # engines that took no requests, at once


class WeightTaker:
    """The worker beside an engine, which looks at what the engine does meanwhile.

    Attributes:
        transfer_s: of a bucket of weights [s].
        buckets: of an update [count].
        fails: what it raises instead; None = nothing.
        hangs: it never ends.
        taken: versions, in order.
        is_well_asked: it was always asked for the newest weights by their version, while its engine was at rest.
    """

    def __init__(self, server: FakeHandle, *, transfer_s: float, strategy: RolloutStrategy) -> None:
        self._server = server
        self._strategy = strategy
        self.transfer_s = transfer_s
        self.buckets = 1
        self._note_progress: Callable[[], Any] = lambda: None
        self.fails: Exception | None = None
        self.hangs = False
        self._never = asyncio.Event()  # held, as nothing else would keep a call that hangs
        self.taken: list[int] = []
        self.is_well_asked = True

    async def report_progress_to(self, balancer: FakeHandle, server_id: str) -> None:
        self._note_progress = lambda: balancer.note_progress.remote(server_id)

    async def take_weights(self, version: int, buckets: list[str]) -> None:
        server: ScriptedServer = self._server.target
        drained = self._strategy is not RolloutStrategy.CONSISTENT or not server.running
        self.is_well_asked &= buckets == [f"weights {version}"] and not server.generates and drained
        if self.fails is not None:
            raise self.fails
        if self.hangs:
            await self._never.wait()
        for left in reversed(range(self.buckets)):
            await asyncio.sleep(self.transfer_s)
            if left:
                self._note_progress()
        self.is_well_asked &= not server.generates
        server.global_steps = version
        self.taken.append(version)


class SeparateCluster(Cluster):
    """
    Args:
        training_s: between a batch and its weights [s].
        transfer_s: of weights to an engine [s].
    """

    _coordinator_class = RollingCoordinator
    _manager_class = RollingManager

    versions_may_fall = True  # the next turn may go to an engine that is updated later

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        opts: AsyncDAPOConfig,
        *,
        training_s: float = 5.0,
        transfer_s: float = 1.0,
        **arguments: Any,
    ) -> None:
        self.training_s = training_s
        self._transfer_s = transfer_s
        self.takers: dict[str, WeightTaker] = {}
        self.lengths: list[int] = []  # of trained responses [tokens]
        self.withheld_tok = 0
        self.accepts_withheld = False  # what came from a checkpoint may be too stale
        super().__init__(monkeypatch, opts, **arguments)
        # No GPUs are left for an engine in the place of a lost one.
        no_gpus = SimpleNamespace(**vars(self.ray.remote), available_resources=dict)
        monkeypatch.setattr(separate_engines, "ray", no_gpus)
        self.watch()

    # ---- what verl's trainer does ----

    def _connect(self) -> None:
        self.ray.get(self.balancer_handle.report_versions_to.remote(self.coordinator_handle))

    def step(self) -> dict[str, float]:
        with self.engines.naming_lost_engines():
            metrics = self.sample()
            self.run_for(self.training_s)
            self.update_weights()
        return metrics

    def sample(self) -> dict[str, float]:
        if not self.engines._have_enrolled:
            self.update_weights()  # as `on_init_end` does
        metrics = super().sample()
        self.withheld_tok += int(metrics["async_dapo/partial/withheld_tokens"])
        return metrics

    def update_weights(self) -> None:
        self.engines.update_weights(self.step_number)

    def validate(self, num_prompts: int) -> KVBatchMeta:
        """As `on_validate_begin`, at the end of a step."""
        self.buffer.end_round()
        self.check_at_rest()
        self.engines.await_newest_weights()
        self.manager.open_engines()
        return super().validate(num_prompts)

    def end_round(self) -> None:
        """As before a checkpoint."""
        self.buffer.end_round()
        self.check_at_rest()

    # ---- engines that come and go ----

    def join(self, **about: Any) -> str:
        """A new engine."""
        number = len(self.server_handles)
        self.servers.append(self._make_server(**about))
        handle = FakeHandle(self.servers[-1], latency_s=0.01)
        self.server_handles.append(handle)
        name = f"server-{number}"
        workers = [self._make_taker(name, handle)]
        self.ray.get(self.balancer_handle.join.remote(name, handle, workers))
        return name

    def versions(self) -> dict[str, int]:
        return self.loop.run_until_complete(self.balancer.versions())

    def watch(self) -> None:
        """Look at the engines from now on."""
        self.seen = Seen()
        self.loop.create_task(self._watch(self.seen), name=f"{REMOTE} watch")

    async def _watch(self, seen: Seen) -> None:
        table = self.balancer._table
        while self.seen is seen:
            await asyncio.sleep(LOOK_S)
            placed = table._by_load.servers
            seen.looks += 1
            out = [name for name in placed if self.balancer._updates.phase_of(name) is not Phase.SERVING]
            seen.most_out = max(seen.most_out, len(out))
            for name, server in placed.items():
                assert not (table.num_queued and server.has_capacity), f"{name} has a place, and requests wait"
                if self._server_of(name).generates and self._server_of(name).running:
                    seen.busy[name] = seen.busy.get(name, 0) + 1

    @property
    def living(self) -> list[ScriptedServer]:
        return [handle.target for handle in self.server_handles if not handle.is_dead]

    def _server_of(self, name: str) -> ScriptedServer:
        return self.servers[int(name.removeprefix("server-"))]

    # ---- what must be true ----

    def check(self, batch: KVBatchMeta) -> None:
        self.check_batch(batch)
        assert all(taker.is_well_asked for taker in self.takers.values()), "by another version, or while it generates"
        most = self.options.max_loads_per_server or 999
        assert all(server.max_running <= most for server in self.servers)

    def check_trajectory(self, fields: dict[str, Any], tag: dict[str, Any]) -> None:
        super().check_trajectory(fields, tag)
        self.lengths.append(len(fields["responses"]))
        if self.options.max_staleness is not None and not self.accepts_withheld:
            assert min(fields["policy_versions"]) >= self.step_number - 1 - self.options.max_staleness

    def check_caught_up(self) -> None:
        """All engines that are left have the newest weights, and generate."""
        self.engines.await_newest_weights()
        self.run_for(10.0)
        versions = self.versions()
        assert versions and set(versions.values()) == {self.step_number}
        assert all(self._server_of(name).generates for name in versions)

    def check_at_rest(self) -> None:
        """No round is open, and engines are empty."""
        self.run_for(0.1)
        self.check_engines()
        rows = {key.split("_")[0] for key in self.store.rows[store.TRAIN]}
        assert rows == set(self.buffer.pool.carried_uids)
        assert not any(worker.active for worker in self.workers)
        self.buffer.pool.check_ledger()

    # ---- how it is put together ----

    def _make_balancer(self, named: dict[str, FakeHandle], router: dict[str, Any]) -> RollingLoadBalancer:
        return RollingLoadBalancer(named, router | {"rolling": rolling_update(self.options)})

    def _make_buffer(self) -> RollingReplayBuffer:
        return RollingReplayBuffer(self.options, self._draw)

    def _make_engines(self) -> SeparateEngines:
        replicas = self._make_replicas()
        for replica in replicas:
            replica.workers.append(self._make_taker(replica.server_address, replica.servers[0]))
        self.training_workers.leave_weights = self._leave_weights
        manager = SimpleNamespace(
            get_replicas=lambda: replicas,
            global_load_balancer=self.balancer_handle,
            rollout_replica_class=lambda **_: SimpleNamespace(world_size=1),
            rollout_config=SimpleNamespace(n_gpus_per_node=1),
            model_config=None,
        )
        return SeparateEngines(VERLS, self.training_workers, manager=manager, options=self.options)

    def _make_taker(self, name: str, handle: FakeHandle) -> FakeHandle:
        self.takers[name] = WeightTaker(handle, transfer_s=self._transfer_s, strategy=self.options.rollout_strategy)
        return FakeHandle(self.takers[name], latency_s=0.01)

    def _leave_weights(self, *, version: int) -> list[RemoteCall]:
        async def leave(rank: int) -> list[str]:
            await asyncio.sleep(0.1)
            return [] if rank else [f"weights {version}"]

        return [RemoteCall(self.loop.create_task(leave(rank), name=f"{REMOTE} leave")) for rank in range(2)]

    def _client_options(self) -> dict[str, bool]:
        strategy = self.options.rollout_strategy
        return {
            "continues": strategy is RolloutStrategy.PARTIAL,
            "rolling": True,
            "one_version": strategy is RolloutStrategy.CONSISTENT,
        }
