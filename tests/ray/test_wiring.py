"""What only real Ray can show: calls that wait do not block others, deaths arrive, the stop reaches every process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
import pytest
import ray
from omegaconf import OmegaConf
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from benchmarks.support.router import router_options
from recipe.async_dapo.actor_watch import ActorDied, watched
from recipe.async_dapo.aio import await_all, resolve
from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import Turn
from recipe.async_dapo.data_plane import queue_watched, start_queue
from recipe.async_dapo.engines.engine_requests import EngineRequests, TrajectoryInterrupted
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancerActor
from recipe.async_dapo.rollout import manager as manager_module
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinatorActor, RoundEvent
from recipe.async_dapo.rollout.manager import AsyncDAPOAgentLoopManager, RolloutError
from recipe.async_dapo.rollout.open_round import Ticket
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.dying_server import DyingServer
from ..support.ray_cluster import local_ray
from ..support.scripted_server import ScriptedServer, token_at

T = TypeVar("T")

# Another run: its driver holds an actor of the name that TransferQueue's controller has, until it is told to end.
OTHER_RUN = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
controller = ray.remote(num_cpus=0)(type("Controller", (), {}))
held = controller.options(name="TransferQueueController", namespace="transfer_queue").remote()
ray.get(held.__ray_ready__.remote())
print("ready", flush=True)
sys.stdin.read()
"""

PATIENCE_S = 300.0  # what has not happened by then hangs
MANY = 4096


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    with local_ray():
        yield


def within_patience(coroutine: Coroutine[Any, Any, T]) -> T:
    async def main() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await coroutine

    return asyncio.run(main())


async def eventually(condition: Any) -> None:
    """For what nobody awaits, such as releases; ends with the time limit of `within_patience`."""
    while not await condition():  # noqa: ASYNC110 (another process has no event for it)
        await asyncio.sleep(0.01)


def start_servers(count: int, **options: Any) -> dict[str, ActorHandle]:
    actor = ray.remote(num_cpus=0, max_concurrency=1000)(ScriptedServer)
    return {f"server-{k}": actor.remote(**options) for k in range(count)}


def start_balancer(servers: dict[str, ActorHandle], capacity: int, **options: Any) -> ActorHandle:
    return GlobalLoadBalancerActor.remote(servers, router_options(capacity) | options)


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


def test_given_a_release_that_overtakes_its_request_then_nothing_is_held() -> None:
    balancer = start_balancer(start_servers(1), capacity=1)

    async def main() -> None:
        await balancer.release_server.remote("", None, "lease")
        assert await balancer.acquire_server.remote("request", "lease") is None
        assert await is_quiet(balancer)

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
    servers = start_servers(2, length_of=1000, token_s=0.01)
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
            assert reason == "stop" and turn.raw_response_ids == [token_at([7], k) for k in range(1000)]
        await eventually(lambda: is_quiet(balancer))
        assert await balancer.get_all_servers.remote() == ["server-1"]

    within_patience(main())


def waiting_manager(balancer: ActorHandle, *, engine_timeout_s: float = PATIENCE_S) -> AsyncDAPOAgentLoopManager:
    """In a round that nobody ends."""
    manager = object.__new__(AsyncDAPOAgentLoopManager)
    options: Any = SimpleNamespace(
        round_timeout_s=PATIENCE_S, stop_timeout_s=PATIENCE_S, engine_timeout_s=engine_timeout_s
    )
    manager._options = options
    manager._balancer = balancer
    manager._coordinator = EarlyStoppingCoordinatorActor.remote(balancer, PATIENCE_S)
    manager._round_id, manager._started = "step-1", time.monotonic()
    manager._worker_refs = []
    spec = RoundSpec(
        round_id="step-1",
        stop_rule=None,
        target_valid_groups=0,
        carried_valid_groups=0,
        num_workers=1,
        drains=True,
    )
    ray.get(manager._coordinator.open_round.remote(spec, [Ticket(prompt_uid="a", unfinished=1, content=b"")]))
    return manager


def test_given_a_server_that_hangs_in_a_round_when_it_gives_no_sign_of_life_then_its_requests_go_on_elsewhere() -> None:
    servers = start_servers(2, length_of=300, token_s=0.01)
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
                assert reason == "stop" and turn.raw_response_ids == [token_at([7], k) for k in range(300)]
            ray.kill(manager._coordinator)
            assert isinstance(await trainer, RolloutError)
        assert await balancer.get_all_servers.remote() == ["server-1"]

    try:
        within_patience(main())
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def next_error(manager: AsyncDAPOAgentLoopManager) -> RolloutError | None:
    try:
        manager.next_event()
    except RolloutError as error:
        return error
    return None


def test_given_a_coordinator_that_is_killed_when_the_trainer_waits_then_it_gets_an_error_at_once() -> None:
    servers = start_servers(1)
    manager = waiting_manager(start_balancer(servers, capacity=1))
    manager._worker_refs = [servers["server-0"].reattach.remote("unknown")]
    ray.kill(manager._coordinator)
    with pytest.raises(RolloutError, match="step-1") as failed:
        manager.next_event()
    assert isinstance(failed.value.__cause__, RayActorError)


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


class Worker:
    """An agent loop worker, one of which never gets to its end of being connected."""

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs

    async def connect(self, llm_client: Any, reward_workers: list[ActorHandle]) -> None:
        if self._hangs:
            await asyncio.Event().wait()

    async def attach(self, coordinator: ActorHandle, worker: int, myself: ActorHandle) -> None: ...


def test_given_a_worker_that_never_starts_when_it_is_connected_then_the_run_ends_and_names_it(
    monkeypatch,
) -> None:
    monkeypatch.setattr(manager_module, "CONNECT_TIMEOUT_S", 3.0)
    manager = object.__new__(AsyncDAPOAgentLoopManager)
    options: Any = SimpleNamespace(stop_timeout_s=PATIENCE_S)
    manager._options = options
    manager.agent_loop_workers = [ray.remote(num_cpus=0)(Worker).remote(hangs) for hangs in (False, True)]
    ray.get([worker.__ray_ready__.remote() for worker in manager.agent_loop_workers])
    client: Any = SimpleNamespace(_load_balancer=start_balancer(start_servers(1), capacity=1))
    with pytest.raises(RolloutError, match=r"agent loop workers \[1\] have not started within 3 s"):
        manager.connect(client, [])


def talk(one: int, other: int) -> bool:
    """Whether there is a connection between two processes."""
    mine, theirs = (psutil.Process(pid).net_connections("tcp") for pid in (one, other))
    return bool({each.laddr for each in mine} & {each.raddr for each in theirs if each.raddr})


def test_given_workers_when_they_are_connected_then_whoever_is_called_in_a_round_has_been_called_before() -> None:
    """While a network is cut, a call fails at once whose connection must be made first."""
    manager = object.__new__(AsyncDAPOAgentLoopManager)
    options: Any = SimpleNamespace(stop_timeout_s=PATIENCE_S)
    manager._options = options
    worker, reward_worker = (ray.remote(num_cpus=0)(Worker).remote(False) for _ in range(2))
    manager.agent_loop_workers = [worker]
    client: Any = SimpleNamespace(_load_balancer=start_balancer({}, capacity=1))
    manager.connect(client, [reward_worker])
    pids = {
        name: ray.get(actor.__ray_call__.remote(lambda _: os.getpid())) for name, actor in manager.named_actors.items()
    }
    calls = [("agent loop worker 0", called) for called in ("coordinator", "load balancer", "reward worker 0")]

    async def all_talk() -> bool:
        return all(talk(pids[one], pids[other]) for one, other in [*calls, ("coordinator", "load balancer")])

    within_patience(eventually(all_talk))


QUEUE = {"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}}


def wait_for_ever(where: str, dies: ActorHandle) -> None:
    with queue_watched(OmegaConf.create(QUEUE)):
        ray.kill(dies)
        if where == "Ray":
            ray.get(start_servers(1)["server-0"].until_death.remote(), timeout=PATIENCE_S)
        else:
            threading.Event().wait(PATIENCE_S)


@pytest.mark.parametrize("dies", ["TransferQueueController", "TransferQueueStorageUnit#0"])
@pytest.mark.parametrize("waits_in", ["Ray", "a lock"])
def test_given_a_queue_that_dies_when_the_trainer_waits_for_anything_then_it_ends_and_names_it(dies, waits_in) -> None:
    actor = ray.remote(num_cpus=0)(ScriptedServer)
    held = {
        "TransferQueueController": actor.options(name="TransferQueueController", namespace="transfer_queue").remote(),
        "TransferQueueStorageUnit#0": actor.options(name="TransferQueueStorageUnit#0").remote(),
    }
    ray.get([one.__ray_ready__.remote() for one in held.values()])
    with pytest.raises(ActorDied, match=f"TransferQueue's actor {dies} died"):
        wait_for_ever(waits_in, held[dies])
    for one in held.values():
        ray.kill(one)


def test_given_a_coordinator_that_dies_while_the_trainer_trains_then_the_run_ends_and_names_it(monkeypatch) -> None:
    def train(trainer: AsyncDAPOTrainer, manager: AsyncDAPOAgentLoopManager) -> None:
        ray.kill(manager._coordinator)
        threading.Event().wait(PATIENCE_S)

    monkeypatch.setattr(PPOTrainer, "fit", train)
    coordinator, balancer, worker, reward_worker = start_servers(4).values()
    manager = object.__new__(AsyncDAPOAgentLoopManager)
    manager._coordinator, manager._balancer = coordinator, balancer
    manager.agent_loop_workers, manager._reward_workers = [worker], [reward_worker]
    needed = {"coordinator", "load balancer", "agent loop worker 0", "reward worker 0"}
    assert manager.named_actors.keys() == needed
    ray.get([actor.__ray_ready__.remote() for actor in manager.named_actors.values()])
    trainer = object.__new__(AsyncDAPOTrainer)
    buffer: Any = SimpleNamespace(attach=lambda manager: None)
    trainer.replay_buffer = buffer
    with pytest.raises(ActorDied, match=r"coordinator died: .* \(node [\d.]+, pid \d+\)$"):
        trainer.fit(manager)


class BrokenWorker:
    def __init__(self) -> None:
        raise ValueError("no such tool")


def test_given_a_worker_that_cannot_be_made_when_engines_start_then_the_start_ends_and_says_why() -> None:
    worker = ray.remote(num_cpus=0)(BrokenWorker).remote()
    died = pytest.raises(ActorDied, match=r"(?s)agent loop worker 0 died: .*no such tool")
    with died, watched({"agent loop worker 0": worker}):
        threading.Event().wait(PATIENCE_S)


def test_given_another_run_on_the_cluster_when_a_queue_is_opened_then_it_is_refused_and_the_other_goes_on() -> None:
    command = [sys.executable, "-c", OTHER_RUN, ray.get_runtime_context().gcs_address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert "ready\n" in other.stdout
        with pytest.raises(ConfigError, match="another run on this Ray cluster"):
            start_queue(OmegaConf.create())
        controller = ray.get_actor("TransferQueueController", namespace="transfer_queue")
        assert ray.get(controller.__ray_ready__.remote())
        other.stdin.close()
