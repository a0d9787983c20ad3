"""Servers behind a balancer, and one trajectory that generates through a client."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.engines.client import AsyncDAPOLLMClient
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.recording import TrajectoryInterrupted, TrajectoryRecorder, current_recorder

from .fakes import FakeHandle, ScriptedServer, log_prob_of, token_at
from .router import router_options

PROMPT = [7]
LENGTH_TOK = 6
ALL_TOKENS = [token_at(PROMPT, k) for k in range(LENGTH_TOK)]
LATENCY_S = 0.25
DONE_S = 6 * LATENCY_S + LENGTH_TOK  # `lease`, `server` and `generate`, there and back
CLEANUP_TIMEOUT_S = 30.0


def llm_client(
    balancer: FakeHandle,
    *,
    response_length: int = 100,
    prompt_length: int = 1,
    cleanup_timeout_s: float = CLEANUP_TIMEOUT_S,
    **options: Any,
) -> AsyncDAPOLLMClient:
    rollout = SimpleNamespace(response_length=response_length, prompt_length=prompt_length, max_model_len=None)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return AsyncDAPOLLMClient(
        config=config, load_balancer_handle=balancer, cleanup_timeout_s=cleanup_timeout_s, **options
    )


@dataclass
class World:
    """Servers behind a balancer, and one trajectory that generates through a client."""

    servers: dict[str, ScriptedServer]
    latency_s: float | Callable[[str], float] = LATENCY_S
    trajectory: Trajectory = field(default_factory=lambda: Trajectory(session_id=0))
    response_length: int = 100
    refused: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.handles = {name: FakeHandle(server, latency_s=self.latency_s) for name, server in self.servers.items()}
        self.balancer = GlobalLoadBalancer(self.handles, router_options(4))
        self.balancer_handle = FakeHandle(self.balancer, latency_s=self.latency_s)
        self.client = llm_client(self.balancer_handle, response_length=self.response_length, refused=self.refused)
        self.recorder = TrajectoryRecorder(trajectory=self.trajectory)

    def generate(self, **sampling_params: Any) -> Any:
        """Start a turn of the trajectory, as a new run of its agent loop."""
        self.recorder = TrajectoryRecorder(trajectory=self.trajectory)
        current_recorder.set(self.recorder)
        return self.client.generate("request", prompt_ids=PROMPT, sampling_params={"logprobs": True, **sampling_params})

    async def is_quiet(self) -> None:
        """Nothing is held, waits or runs any more, and every token that was generated is in the record."""
        await asyncio.sleep(100 + CLEANUP_TIMEOUT_S)
        status = await self.balancer.get_status()
        assert (status["total_inflight"], status["queued"]) == (0, 0)
        assert all(not server.running for server in self.servers.values())
        generated = [tokens for server in self.servers.values() for tokens in server.generated.values()]
        assert self.trajectory.raw_response_ids == [token for tokens in generated for token in tokens]
        for turn in self.trajectory.turns:
            assert turn.rollout_log_probs == pytest.approx([log_prob_of(token) for token in turn.raw_response_ids])


def world(*, delivery_tok: int | None = None, routes: bool = False, **options: Any) -> World:
    servers = {name: ScriptedServer(LENGTH_TOK, delivery_tok=delivery_tok, routes=routes) for name in "ab"}
    return World(servers, **options)


def assert_whole(output: TokenOutput) -> None:
    assert output.token_ids == ALL_TOKENS
    assert output.log_probs == pytest.approx([log_prob_of(token) for token in ALL_TOKENS])


async def stopped_at(it: World, time_s: float, **sampling_params: Any) -> None:
    """Generate until engines stop, and let the next round open with new weights."""
    turn = asyncio.create_task(ending_of(it.generate(**sampling_params)))
    await asyncio.sleep(time_s)
    await it.balancer_handle.stop.remote()
    ending = await turn
    assert ending is None or isinstance(ending, TrajectoryInterrupted)
    await asyncio.sleep(1)
    for handle in it.handles.values():
        await handle.set_global_steps.remote(1)
    await it.balancer_handle.open.remote()


async def ending_of(awaitable: Awaitable[Any]) -> BaseException | None:
    try:
        await awaitable
    except (Exception, asyncio.CancelledError) as error:
        return error
    return None


def cancel_at(times_s: list[float], task: asyncio.Task[Any]) -> None:
    for time_s in times_s:
        asyncio.get_running_loop().call_at(time_s, task.cancel)
