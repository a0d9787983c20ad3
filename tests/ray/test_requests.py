"""Requests on real Ray: those that wait do not block others, and those of a server that hangs go on elsewhere.

Stops and deaths of engines are in the trainings of `tests/e2e`.
"""

import asyncio
import copy
import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import ray
from ray.actor import ActorHandle

from recipe.async_dapo.core.leases import Requested, Returned
from recipe.async_dapo.core.trajectory import Turn
from recipe.async_dapo.engines.engine_requests import EngineRequests
from recipe.async_dapo.rollout.all_workers import RolloutError
from recipe.async_dapo.runtime.aio import await_all, resolve

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
LENGTH_TOK = 100  # of each answer: a second, once servers generate

pytestmark = pytest.mark.usefixtures("local_cluster")


def is_patient_with(address: str) -> Callable[[Any], None]:
    """For the balancer: only the other engine has to answer in time. A busy machine may let this one wait longer."""

    def act(balancer: Any) -> None:
        lives = balancer._lives
        patient = copy.copy(lives)  # with the same engines
        patient._timeout_s = PATIENCE_S
        lives.ask = lambda told, *call: type(lives).ask(patient if told == address else lives, told, *call)

    return act


async def generate(balancer: ActorHandle, name: str) -> Turn:
    """One request to its end. What was lost with its server is sent again."""
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    requests = EngineRequests(balancer, cleanup_timeout_s=PATIENCE_S)
    params = {"max_tokens": 10_000, "logprobs": True}
    while turn.finish_reason is None:
        await requests.advance(turn, name, [7, *turn.raw_response_ids], params, {})
    return turn


def test_given_4096_waiters_when_a_lease_is_released_then_the_release_is_not_behind_them() -> None:
    balancer = start_balancer(start_servers(1), capacity=1)

    async def main() -> None:
        leases = [Requested(lease_id=f"lease-{k}", request_id="request") for k in range(1 + MANY)]
        assert list(await balancer.exchange.remote(leases, [])) == ["lease-0"]
        waiters = [asyncio.ensure_future(resolve(balancer.granted.remote(one.lease_id))) for one in leases[1:]]

        async def all_wait() -> bool:
            return (await balancer.get_status.remote())["queued"] == MANY

        await eventually(all_wait)
        await balancer.exchange.remote([], [Returned(lease_id="lease-0")])
        assert await waiters[0] is not None
        await balancer.stop.remote()
        assert await await_all(waiters[1:]) == [None] * (MANY - 1)

    within_patience(main())


def test_given_a_server_that_hangs_in_a_round_when_it_gives_no_sign_of_life_then_its_requests_go_on_elsewhere() -> None:
    servers = start_servers(2, length_of=LENGTH_TOK, token_s=0.01)
    balancer = start_balancer(servers, capacity=4, engine_timeout_s=6.0)
    ray.get(balancer.__ray_call__.remote(is_patient_with("server-1")))
    hangs, lives = servers.values()
    pid = ray.get(hangs.__ray_call__.remote(lambda _: os.getpid()))
    for server in (hangs, lives):  # no answer ends before one of them hangs
        ray.get(server.__ray_call__.remote(lambda own: own._decodes.clear()))

    async def both_generate() -> bool:
        return all([await server.num_running.remote() == 4 for server in servers.values()])

    async def main() -> None:
        manager = await asyncio.to_thread(waiting_manager, balancer, engine_timeout_s=6.0)
        async with asyncio.TaskGroup() as tasks:
            trainer = tasks.create_task(asyncio.to_thread(next_error, manager))
            calls = [tasks.create_task(generate(balancer, f"request-{k}")) for k in range(8)]
            await eventually(both_generate)
            os.kill(pid, signal.SIGSTOP)
            await lives.__ray_call__.remote(lambda own: own._decodes.set())
            for call in calls:
                turn = await call
                assert turn.finish_reason == "stop"
                assert turn.raw_response_ids == [token_at([7], k) for k in range(LENGTH_TOK)]
            ray.kill(manager._coordinator)
            assert isinstance(await trainer, RolloutError)
        assert (await balancer.get_status.remote())["registered_handles"] == ["server-1"]

    try:
        within_patience(main())
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
