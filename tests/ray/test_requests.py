"""Requests on real Ray: those that wait do not block others, and the stop and the death of a server reach all."""

import asyncio
import os
import signal

import psutil
import pytest
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from recipe.async_dapo.aio import await_all, resolve
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import Turn
from recipe.async_dapo.engines.engine_requests import EngineRequests, TrajectoryInterrupted
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinatorActor, RoundEvent, Ticket
from recipe.async_dapo.rollout.manager import RolloutError

from ..support.dying_server import DyingServer
from ..support.real_actors import (
    PATIENCE_S,
    eventually,
    next_error,
    start_balancer,
    start_servers,
    waiting_manager,
    within_patience,
)
from ..support.scripted_server import token_at

MANY = 4096
LENGTH_TOK = 300  # of what is generated when a server goes: three seconds

pytestmark = pytest.mark.usefixtures("local_cluster")


async def generate(balancer: ActorHandle, name: str) -> tuple[str | None, Turn]:
    """One request. Returns its finish reason, None if the stop interrupted it, and its record."""
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    requests = EngineRequests(balancer, cleanup_timeout_s=PATIENCE_S)
    try:
        while True:  # a request that was lost with its server is sent again
            params = {"max_tokens": 10_000, "logprobs": True}
            reason = await requests.advance(turn, name, [7, *turn.raw_response_ids], params, {})
            if reason is not None:
                return reason, turn
    except TrajectoryInterrupted:
        return None, turn


async def is_quiet(balancer: ActorHandle) -> bool:
    status = await balancer.get_status.remote()
    return (status["total_inflight"], status["waiting"]) == (0, 0)


def test_given_4096_waiters_when_a_lease_is_released_then_the_release_is_not_behind_them() -> None:
    balancer = start_balancer(start_servers(1), capacity=1)

    async def main() -> None:
        assert await balancer.acquire_server.remote("request", "holder") is not None
        waiters = [
            asyncio.ensure_future(resolve(balancer.acquire_server.remote("request", f"lease-{k}"))) for k in range(MANY)
        ]

        async def all_wait() -> bool:
            return (await balancer.get_status.remote())["waiting"] == MANY

        await eventually(all_wait)
        await balancer.release_server.remote("", None, "holder")
        # Ray may start calls of a burst in another order than they were made: any waiter can be the first in line.
        served, waiting = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        assert [waiter.result() is not None for waiter in served] == [True]
        await balancer.stop.remote()
        assert await await_all(waiting) == [None] * (MANY - 1)

    within_patience(main())


def test_given_requests_on_all_servers_when_the_round_stops_then_everybody_is_reached_and_no_lease_is_out() -> None:
    servers = start_servers(4, length_of=100_000, token_s=0.01)
    balancer = start_balancer(servers, capacity=8)
    coordinator = EarlyStoppingCoordinatorActor.remote(balancer, PATIENCE_S)
    spec = RoundSpec(
        round_id="step-1",
        stop_rule=StopRuleName.FIRST_COMPLETED,
        target_valid_groups=1,
        carried_valid_groups=0,
        num_workers=1,
        drains=False,
    )

    async def running() -> int:
        return sum([await server.num_running.remote() for server in servers.values()])

    async def all_slots_are_taken() -> bool:
        return await running() == 32

    async def main() -> None:
        groups = [Ticket(prompt_uid=uid, unfinished=1, content=b"") for uid in ("a", "b")]
        await coordinator.open_round.remote(spec, groups)
        assert (await coordinator.take_group.remote("step-1", 0)).prompt_uid == "a"
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(generate(balancer, f"request-{k}")) for k in range(64)]
            workers = [tasks.create_task(wait_stopped(coordinator)) for _ in range(8)]
            await eventually(all_slots_are_taken)
            outcome = GroupOutcome(prompt_uid="a", verdict=Verdict.VALID)
            await coordinator.report_completion.remote("step-1", outcome)
            assert await coordinator.next_event.remote("step-1") is RoundEvent.STOPPED
            assert await running() == 0
        assert all(worker.done() for worker in workers)
        for call in calls:
            reason, turn = call.result()
            assert reason is None
            assert turn.raw_response_ids == [token_at([7], k) for k in range(turn.generated_tok)]
        await eventually(lambda: is_quiet(balancer))

    within_patience(main())


async def wait_stopped(coordinator: ActorHandle) -> None:
    await coordinator.wait_stopped.remote("step-1")


def test_given_a_server_that_is_killed_when_it_generates_then_its_requests_are_whole_on_the_others() -> None:
    servers = start_servers(2, length_of=LENGTH_TOK, token_s=0.01)
    balancer = start_balancer(servers, capacity=8)

    async def both_generate() -> bool:
        return all([await server.num_running.remote() == 4 for server in servers.values()])

    async def main() -> None:
        await await_all(server.num_running.remote() for server in servers.values())  # both have started
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(generate(balancer, f"request-{k}")) for k in range(8)]
            await eventually(both_generate)
            ray.kill(servers["server-0"])
        for call in calls:
            reason, turn = call.result()
            assert reason == "stop" and turn.raw_response_ids == [token_at([7], k) for k in range(LENGTH_TOK)]
        await eventually(lambda: is_quiet(balancer))
        assert await balancer.get_all_servers.remote() == ["server-1"]

    within_patience(main())


def test_given_a_server_that_hangs_in_a_round_when_it_gives_no_sign_of_life_then_its_requests_go_on_elsewhere() -> None:
    servers = start_servers(2, length_of=LENGTH_TOK, token_s=0.01)
    balancer = start_balancer(servers, capacity=4, engine_timeout_s=2.0)
    pid = ray.get(servers["server-0"].__ray_call__.remote(lambda _: os.getpid()))

    async def both_generate() -> bool:
        return all([await server.num_running.remote() == 4 for server in servers.values()])

    async def main() -> None:
        manager = await asyncio.to_thread(waiting_manager, balancer, engine_timeout_s=2.0)
        async with asyncio.TaskGroup() as tasks:
            trainer = tasks.create_task(asyncio.to_thread(next_error, manager))
            calls = [tasks.create_task(generate(balancer, f"request-{k}")) for k in range(8)]
            await eventually(both_generate)
            os.kill(pid, signal.SIGSTOP)
            for call in calls:
                reason, turn = await call
                assert reason == "stop" and turn.raw_response_ids == [token_at([7], k) for k in range(LENGTH_TOK)]
            ray.kill(manager._coordinator)
            assert isinstance(await trainer, RolloutError)
        assert await balancer.get_all_servers.remote() == ["server-1"]

    try:
        within_patience(main())
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_given_an_engine_that_dies_in_a_living_server_then_its_clients_see_a_dead_server() -> None:
    server = ray.remote(num_cpus=0, max_concurrency=1000)(DyingServer).remote()

    async def main() -> None:
        await server.ready.remote()
        calls = [server.generate.remote([7], {"max_tokens": 1000}, f"request-{k}") for k in range(3)]
        server.die.remote()  # with it goes the process that would answer
        for call in calls:
            with pytest.raises(RayActorError):
                await call

    within_patience(main())
