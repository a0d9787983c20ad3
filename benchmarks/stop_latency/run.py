"""How long from the B-th valid report until every engine is idle, and until the trainer knows: real actors, scripted
engines, all on this machine.

python -m benchmarks.stop_latency --requests 256 --servers 4 --rounds 200

Adds a row to `runs.csv`. The project's own rows are in `assets/stop_latency`.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import ray

from benchmarks.support.router import router_options
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.scripted_engine import ScriptedServer
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import Turn
from recipe.async_dapo.engines.engine_requests import EngineRequests
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancerActor
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinatorActor


class Requester:
    """Keeps requests in flight with the recipe's own request code, as a worker does."""

    def __init__(self, balancer: ray.actor.ActorHandle) -> None:
        self._requests = EngineRequests(balancer, cleanup_timeout_s=10)

    async def hold(self, count: int) -> int:
        """Send requests and wait until the stop has given all of them back. Returns the tokens that were kept."""
        turns = [Turn(prompt_digest=b"", prompt_len_tok=8) for _ in range(count)]
        async with asyncio.TaskGroup() as tasks:
            for index, turn in enumerate(turns):
                tasks.create_task(self._hold_one(turn, f"trajectory-{index}"))
        return sum(turn.generated_tok for turn in turns)

    async def _hold_one(self, turn: Turn, name: str) -> None:
        goes_on = await self._requests.advance(turn, name, list(range(8)), {"max_tokens": 64}, {})
        assert not goes_on, "a scripted request ended by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopLatency:
    """Since the B-th valid report was sent."""

    idle_ms: float  # until the last engine had nothing left to run
    told_ms: float  # until the trainer's call returned


def measure(*, requests: int, servers: int, workers: int, rounds: int) -> list[StopLatency]:
    """One stop a round, with all requests in flight."""
    server_cls = ray.remote(num_cpus=0, max_concurrency=10_000)(ScriptedServer)
    handles = {f"server-{i}": server_cls.remote() for i in range(servers)}
    balancer = GlobalLoadBalancerActor.remote(handles, router_options(requests // servers))
    coordinator = EarlyStoppingCoordinatorActor.remote(balancer)
    requester_cls = ray.remote(num_cpus=0, max_concurrency=16)(Requester)
    requesters = [requester_cls.remote(balancer) for _ in range(workers)]
    return [
        _one_round(f"round-{i}", coordinator, balancer, requesters, list(handles.values()), requests)
        for i in range(rounds)
    ]


def _one_round(round_id, coordinator, balancer, requesters, servers, requests) -> StopLatency:
    ray.get(balancer.open.remote())
    spec = RoundSpec(
        round_id=round_id,
        stop_rule=StopRuleName.FIRST_COMPLETED,
        target_valid_groups=1,
        carried_valid_groups=0,
        drains=False,
    )
    ray.get(coordinator.open_round.remote(spec, [WaitingGroup(prompt_uid="last", unfinished=1, content=b"")]))
    ray.get(coordinator.take_group.remote(round_id, 0))
    held = [requester.hold.remote(requests // len(requesters)) for requester in requesters]
    ray.get([server.wait_full.remote(requests // len(servers)) for server in servers])
    stopped = coordinator.next_event.remote(round_id)
    started = time.perf_counter()
    coordinator.report_completion.remote(round_id, GroupOutcome(prompt_uid="last", verdict=Verdict.VALID))
    ray.get(stopped)
    told_ms = 1000 * (time.perf_counter() - started)
    idle_ms = 1000 * (max(ray.get([server.idle_at_s.remote() for server in servers])) - started)
    assert sum(ray.get([server.num_running.remote() for server in servers])) == 0
    ray.get(held)
    ray.get(balancer.all_returned.remote([]))
    ray.get(coordinator.close_round.remote(round_id))
    return StopLatency(idle_ms=idle_ms, told_ms=told_ms)


def summary(latencies: list[StopLatency]) -> dict[str, float]:
    """Median, 99 % quantile and maximum over the stops [ms]."""
    figures = pd.DataFrame(latencies).quantile([0.5, 0.99, 1.0]).round(1)
    names = {"idle": "idle_ms", "told": "told_ms"}
    places = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {f"{name}_{at}_ms": figures.loc[q, column] for name, column in names.items() for at, q in places.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256, help="requests in flight at the stop")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("outputs", "stop_latency"))
    options = parser.parse_args()
    if options.requests % options.servers or options.requests % options.workers:
        parser.error(f"--requests {options.requests}: must be a multiple of --servers and of --workers")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    try:
        setting = {name: getattr(options, name) for name in ("requests", "servers", "workers", "rounds")}
        row = setting | summary(measure(**setting))
    finally:
        ray.shutdown()
    RunsFile(options.output / "runs.csv").add(row)
    print(row)
