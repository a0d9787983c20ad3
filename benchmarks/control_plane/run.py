"""What the load balancer and the coordinator cost, against verl's router and replay buffer: real actors, one run.

python -m benchmarks.control_plane --in-flight 256 4096 16384 --servers 4 64 512 --repetitions 3

Router and load balancer: every client holds its share of the requests in flight, gives all back, and asks for as many
again, until 16,384 have been given back. Coordinator and replay buffer: as many trajectories as are in flight, in
groups of 16, come to their end; the coordinator is told, round after round until 16,384 have ended, the replay buffer
looks at verl's TransferQueue every 2 s. CPU seconds are those of the actors, with all their threads, after a first
wave or round. The servers are names for one idle actor: nothing is generated. Writes `control_plane.csv`, and goes on
where it ends. The project's own rows are in `assets/control_plane`.
"""

import argparse
import asyncio
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from ray.actor import ActorHandle
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from benchmarks.support.router import router_options
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.core.balance import Returned
from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import GroupEvent, RoundSpec
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancerActor
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinatorActor
from recipe.async_dapo.runtime.aio import TurnBatch

NUM_CLIENTS = 2
GROUP_SIZE = 16
TRAJECTORIES = 16_384  # measured in each row, but for the replay buffer's
LOOKS = 10
LONGEST_S = 600.0  # for the last releases to arrive; a moment is usual
STEP_S, POLL_S = 60.0, 2.0  # of the replay buffer's row: a step's length is assumed, the poll is verl's
LOAD = EngineLoad(kv_room_tok=600_000, max_num_seqs=256)


class IdleServer:
    async def allow_generation(self) -> EngineLoad:
        """Nothing runs here."""
        return LOAD


class Client:
    """Holds requests in flight, as a worker does."""

    def __init__(self, balancer: ActorHandle, name: str) -> None:
        self._balancer, self._name = balancer, name
        self._releases = TurnBatch[Returned](lambda leases: balancer.give_back.remote(leases))

    async def ours(self, count: int, wave: int) -> None:
        leases = [f"{self._name}-{wave}-{i}" for i in range(count)]
        await asyncio.gather(*[_resolve(self._balancer.lease.remote(lease, lease, 200, 0)) for lease in leases])
        for lease in leases:
            self._releases.add(Returned(lease_id=lease, server_id="server-0", response_tok=4000, load=LOAD))

    async def verls(self, count: int, wave: int) -> None:
        names = [f"{self._name}-{wave}-{i}" for i in range(count)]
        servers = await asyncio.gather(*[_resolve(self._balancer.acquire_server.remote(request_id=n)) for n in names])
        for server_id, _ in servers:
            self._balancer.release_server.remote(server_id=server_id)

    async def lanes(self, count: int, coordinator: ActorHandle, round_id: str, worker: int) -> None:
        """Lanes take groups to the end of the round and report every trajectory."""
        await asyncio.gather(*[self._lane(coordinator, round_id, worker) for _ in range(count)])

    async def _lane(self, coordinator: ActorHandle, round_id: str, worker: int) -> None:
        while (ticket := await coordinator.take_group.remote(round_id, worker)) is not None:
            reports = [
                coordinator.report_progress.remote(round_id, [(ticket.prompt_uid, GroupEvent.GENERATED)])
                for _ in range(ticket.unfinished)
            ]
            await asyncio.gather(*map(_resolve, reports))  # rewards are computed meanwhile
            outcome = GroupOutcome(prompt_uid=ticket.prompt_uid, verdict=Verdict.VALID)
            await coordinator.report_completion.remote(round_id, outcome)


async def _resolve(ref: Any) -> Any:
    return await ref


def usage(actor: ActorHandle) -> tuple[float, float]:
    """CPU seconds and peak memory [MB] of an actor's process."""

    def measure(_: Any) -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024

    return ray.get(actor.__ray_call__.remote(measure))


def wait_for_releases(balancer: ActorHandle) -> None:
    """Until all leases are back: nobody awaits releases, and late ones would be counted in the next measurement."""
    started = time.monotonic()
    while ray.get(balancer.get_status.remote())["total_inflight"]:
        assert time.monotonic() - started < LONGEST_S, "requests were never given back"


def balancer_cost(make: Callable[[dict], ActorHandle], method: str, servers: int, in_flight: int) -> dict:
    waves = max(1, TRAJECTORIES // in_flight)
    idle = ray.remote(num_cpus=0)(IdleServer).remote()
    balancer = make({f"server-{i}": idle for i in range(servers)})
    client_cls = ray.remote(num_cpus=0)(Client)
    clients = [client_cls.remote(balancer, f"client-{i}") for i in range(NUM_CLIENTS)]
    share = in_flight // NUM_CLIENTS
    ray.get([getattr(client, method).remote(share, -1) for client in clients])  # imports and first calls
    wait_for_releases(balancer)
    before_s, _ = usage(balancer)
    started = time.monotonic()
    for wave in range(waves):
        ray.get([getattr(client, method).remote(share, wave) for client in clients])
    wait_for_releases(balancer)
    took_s = time.monotonic() - started
    after_s, memory_mb = usage(balancer)
    for actor in (*clients, balancer, idle):
        ray.kill(actor)
    requests = waves * share * NUM_CLIENTS
    return {
        "cpu_ms_per_trajectory": round(1000 * (after_s - before_s) / requests, 3),
        "per_s": round(requests / took_s),
        "peak_memory_mb": round(memory_mb),
    }


def coordinator_cost(in_flight: int) -> dict:
    idle = ray.remote(num_cpus=0)(IdleServer).remote()
    balancer = GlobalLoadBalancerActor.remote({"server": idle}, router_options(1))
    coordinator = EarlyStoppingCoordinatorActor.remote(balancer)
    client_cls = ray.remote(num_cpus=0)(Client)
    clients = [client_cls.remote(balancer, f"client-{i}") for i in range(NUM_CLIENTS)]
    rounds = max(1, TRAJECTORIES // in_flight)
    coordinated_round("first calls", coordinator, clients, in_flight)
    before_s, _ = usage(coordinator)
    started = time.monotonic()
    for number in range(rounds):
        coordinated_round(f"round-{number}", coordinator, clients, in_flight)
    took_s = time.monotonic() - started
    after_s, memory_mb = usage(coordinator)
    for actor in (*clients, coordinator, balancer, idle):
        ray.kill(actor)
    trajectories = rounds * in_flight
    return {
        "cpu_ms_per_trajectory": round(1000 * (after_s - before_s) / trajectories, 3),
        "per_s": round(trajectories / took_s),
        "peak_memory_mb": round(memory_mb),
    }


def coordinated_round(round_id: str, coordinator: ActorHandle, clients: list[ActorHandle], in_flight: int) -> None:
    spec = RoundSpec(
        round_id=round_id,
        stop_rule=None,
        target_valid_groups=0,
        carried_valid_groups=0,
        drains=True,
    )
    groups = [f"group-{i}" for i in range(in_flight // GROUP_SIZE)]
    tickets = [WaitingGroup(prompt_uid=uid, unfinished=GROUP_SIZE, content=b"") for uid in groups]
    ray.get(coordinator.open_round.remote(spec, tickets))
    lanes = len(groups) // NUM_CLIENTS
    ray.get([client.lanes.remote(lanes, coordinator, round_id, i) for i, client in enumerate(clients)])
    summary = ray.get(coordinator.close_round.remote(round_id))
    assert len(summary.start_order) == len(groups), f"{len(summary.start_order)} groups started"
    assert summary.ended_trajectories == in_flight, f"{summary.ended_trajectories} trajectories ended"


def replay_buffer_cost(trajectories: int) -> dict:
    """verl's replay buffer, and the controller of the queue that it asks, with all trajectories ended."""
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    tags = {}
    for group in range(trajectories // GROUP_SIZE):
        tags[f"group{group}"] = {"is_prompt": True, "status": "finished", "global_steps": 1}
        for session in range(GROUP_SIZE):
            tags[f"group{group}_{session}_0"] = {"status": "success", "prompt_len": 8, "response_len": 8, "seq_len": 16}
    tq.kv_batch_put(keys=list(tags), tags=list(tags.values()), partition_id="train")
    buffer = ReplayBufferAsync(
        trainer_mode="colocate_async",
        trainer_config=OmegaConf.create(),
        max_off_policy_threshold=None,
        max_off_policy_strategy="wait",
        sampler_kwargs=OmegaConf.create(),
    )
    controller = ray.get_actor("TransferQueueController", namespace="transfer_queue")
    before_s = time.process_time() + usage(controller)[0]
    for _ in range(LOOKS):
        found = buffer.get_sampleable_count(1, "train")
        assert found == trajectories // GROUP_SIZE, f"{found} groups found"
    look_s = (time.process_time() + usage(controller)[0] - before_s) / LOOKS
    memory_mb = usage(controller)[1]
    tq.close()
    return {
        "cpu_ms_per_look": round(1000 * look_s, 3),
        "cpu_ms_per_trajectory": round(1000 * look_s * STEP_S / POLL_S / trajectories, 3),
        "peak_memory_mb": round(memory_mb),
    }


def verls_router(servers: dict) -> ActorHandle:
    return ray.remote(num_cpus=0)(GlobalRequestLoadBalancer).remote(servers)


def our_balancer(servers: dict) -> ActorHandle:
    return GlobalLoadBalancerActor.remote(servers, router_options(100_000))


# Each takes the number of servers and of trajectories in flight.
ACTORS: dict[str, Callable[[int, int], dict]] = {
    "verl router": lambda servers, in_flight: balancer_cost(verls_router, "verls", servers, in_flight),
    "load balancer": lambda servers, in_flight: balancer_cost(our_balancer, "ours", servers, in_flight),
    "verl replay buffer": lambda _, in_flight: replay_buffer_cost(in_flight),
    "coordinator": lambda _, in_flight: coordinator_cost(in_flight),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[256, 4096, 16384])
    parser.add_argument("--servers", type=int, nargs="+", default=[4, 64, 512], help="one number for each --in-flight")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs", "control_plane"))
    options = parser.parse_args()
    rows = RunsFile(options.output / "control_plane.csv")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    try:
        for repetition in range(options.repetitions):
            for in_flight, servers in zip(options.in_flight, options.servers, strict=True):
                for name, measure in ACTORS.items():
                    cell = {"actor": name, "in_flight": in_flight, "servers": servers, "repetition": repetition}
                    rows.measure(cell, partial(measure, servers, in_flight))
    finally:
        ray.shutdown()
