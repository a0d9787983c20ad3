"""The load balancer as verl's own clients use it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from ..support.balancer_world import balancer, is_quiet
from ..support.client_world import LENGTH_TOK, assert_whole, world
from ..support.fakes import FakeHandle, token_at
from ..support.simulation import settle, simulate


def stock_client(lb: Any) -> LLMServerClient:
    """verl's own; its calls need nothing of the configuration but what they do without."""
    rollout = SimpleNamespace(full_determinism=False, name="vllm")
    config: Any = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return LLMServerClient(config, FakeHandle(lb))


def test_given_one_request_id_when_verls_client_generates_twice_in_parallel_then_both_end_and_nothing_is_held() -> None:
    async def main() -> None:
        lb = balancer("ab", capacity=2)
        client = stock_client(lb)
        async with asyncio.TaskGroup() as tasks:
            calls = [
                tasks.create_task(client.generate("request", prompt_ids=[7], sampling_params={"max_tokens": 5}))
                for _ in range(6)
            ]
        assert all(call.result().token_ids for call in calls)
        await asyncio.sleep(1)  # releases are not awaited by those who send them
        await is_quiet(lb)

    simulate(main())


@pytest.mark.parametrize("names_request", [False, True])
def test_given_leases_without_a_name_when_one_is_released_then_one_of_its_server_is_back(names_request: bool) -> None:
    async def main() -> None:
        lb = balancer("ab", capacity=3)
        leased = [await lb.acquire_server("request") for _ in range(4)]
        assert [await lb.get_inflight_count(server_id) for server_id in "abc"] == [2, 2, 0]
        for k, lease in enumerate(leased):
            assert lease is not None
            await lb.release_server(lease[0], *(["request"] if names_request else []))
            assert await lb.get_total_inflight() == 3 - k
        await lb.release_server("a")  # once too often
        await lb.release_server("b", "another")
        await lb.release_server("unknown")
        await is_quiet(lb)

    simulate(main())


def test_given_a_request_id_when_released_then_no_lease_of_another_request_is() -> None:
    async def main() -> None:
        lb = balancer("a", capacity=2)
        await lb.acquire_server("first"), await lb.acquire_server("second")
        await lb.release_server("a", "second")
        await lb.release_server("a", "second")
        assert await lb.get_inflight_count("a") == 1
        await lb.release_server("a", "first")
        await is_quiet(lb)

    simulate(main())


def test_given_a_stop_when_verls_client_waits_or_asks_then_it_has_an_error_that_says_so() -> None:
    async def main() -> None:
        lb = balancer("a")
        await lb.acquire_server("holder")
        waiting = asyncio.create_task(lb.acquire_server("request"))
        await settle()
        await lb.stop()
        for call in (waiting, lb.acquire_server("request")):
            with pytest.raises(RuntimeError, match="generation is stopped"):
                await call
        await lb.release_server("a", "holder")
        await is_quiet(lb)

    simulate(main())


def test_given_the_same_calls_then_status_and_counts_are_those_of_verls_balancer() -> None:
    async def main() -> None:
        lb = balancer("ab", capacity=8)
        verls = GlobalRequestLoadBalancer(dict.fromkeys("ab"))
        for name in ("x", "x", "y"):
            await lb.acquire_server(name)
            verls.acquire_server(name)
        ours = await lb.get_status()
        assert {key: ours[key] for key in verls.get_status()} == verls.get_status() | {"servers": ours["servers"]}
        assert sorted(ours["servers"].values()) == sorted(verls.get_status()["servers"].values())
        assert await lb.get_all_servers() == verls.get_all_servers()
        assert (await lb.clear_sticky_cache())["cleared_entries"] == verls.clear_sticky_cache()["cleared_entries"]
        await lb.remove_servers(["a", "b"])
        with pytest.raises(RuntimeError, match="No available servers"):
            await lb.acquire_server("x")

    simulate(main())


def test_given_an_agent_loop_that_generates_twice_in_parallel_under_one_id_then_both_answers_are_whole() -> None:
    async def main() -> None:
        it = world()
        first = it.generate()
        second = it.client.generate("request", prompt_ids=[8], sampling_params={"logprobs": True})
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(first), tasks.create_task(second)]
        assert_whole(calls[0].result())
        assert calls[1].result().token_ids == [token_at([8], k) for k in range(LENGTH_TOK)]
        await it.is_quiet()

    simulate(main())
