"""Deaths of what a run cannot do without, on real Ray: whatever the trainer waits for, it ends and names the dead."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from omegaconf import OmegaConf
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.data_plane import queue_watched, start_queue
from recipe.async_dapo.rollout import all_workers
from recipe.async_dapo.rollout.all_workers import RolloutError
from recipe.async_dapo.rollout.manager import AsyncDAPOAgentLoopManager
from recipe.async_dapo.runtime.actor_watch import ActorDied, watched
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.plain_actors import BrokenWorker, HangingWorker, Worker
from ..support.real_actors import (
    PATIENCE_S,
    eventually,
    start_balancer,
    start_servers,
    waiting_manager,
    within_patience,
)
from ..support.scripted_server import ScriptedServer

QUEUE = {"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}}
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

pytestmark = pytest.mark.usefixtures("local_cluster")


def test_given_a_coordinator_that_is_killed_when_the_trainer_waits_then_it_gets_an_error_at_once() -> None:
    servers = start_servers(1)
    manager = waiting_manager(start_balancer(servers, capacity=1))
    manager._worker_refs = [servers["server-0"].reattach.remote("unknown")]
    ray.kill(manager._coordinator)
    with pytest.raises(RolloutError, match="step-1") as failed:
        manager.next_event()
    assert isinstance(failed.value.__cause__, RayActorError)


def bare_manager() -> AsyncDAPOAgentLoopManager:
    manager: Any = object.__new__(AsyncDAPOAgentLoopManager)
    manager._options = SimpleNamespace(stop_timeout_s=PATIENCE_S)
    return manager


def wait_when_the_first_has_answered(wait: Callable[..., Any], calls: list[Any], **options: Any) -> Any:
    """Of two workers: the limit is one for the second, however slow the machine is."""
    first = calls[::2]
    assert len(wait(first, num_returns=len(first), timeout=PATIENCE_S)[0]) == len(first)
    return wait(calls, **options)


def test_given_a_worker_that_never_starts_when_it_is_connected_then_the_run_ends_and_names_it(monkeypatch):
    monkeypatch.setattr(all_workers, "CONNECT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(ray, "wait", partial(wait_when_the_first_has_answered, ray.wait))
    manager = bare_manager()
    manager.agent_loop_workers = [ray.remote(num_cpus=0)(kind).remote() for kind in (Worker, HangingWorker)]
    ray.get([worker.__ray_ready__.remote() for worker in manager.agent_loop_workers])
    client: Any = SimpleNamespace(_load_balancer=start_balancer(start_servers(1), capacity=1))
    coordinator = manager._coordinator_actor.remote(client._load_balancer, PATIENCE_S)
    ray.get([actor.__ray_ready__.remote() for actor in (client._load_balancer, coordinator)])
    monkeypatch.setattr(manager, "_coordinator_actor", SimpleNamespace(remote=lambda *_: coordinator))
    with pytest.raises(RolloutError, match=r"agent loop workers \[1\] have not started within 1 s"):
        manager.connect(client, [])


def talk(one: int, other: int) -> bool:
    """Whether there is a connection between two processes."""
    mine, theirs = (psutil.Process(pid).net_connections("tcp") for pid in (one, other))
    return bool({each.laddr for each in mine} & {each.raddr for each in theirs if each.raddr})


def test_given_workers_when_they_are_connected_then_whoever_is_called_in_a_round_has_been_called_before() -> None:
    """While a network is cut, a call fails at once whose connection must be made first."""
    manager = bare_manager()
    worker, reward_worker = (ray.remote(num_cpus=0)(Worker).remote() for _ in range(2))
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
    buffer: Any = SimpleNamespace(attach=lambda manager: None, observers={})
    engines: Any = SimpleNamespace(naming_lost_engines=nullcontext)
    trainer.replay_buffer, trainer._engines = buffer, engines
    config: Any = SimpleNamespace(trainer=SimpleNamespace(logger=[]))
    trainer.config, trainer.global_steps = config, 0
    with pytest.raises(ActorDied, match=r"coordinator died: .* \(node [\d.]+, pid \d+\)$"):
        trainer.fit(manager)


def test_given_a_worker_that_cannot_be_made_when_engines_start_then_the_start_ends_and_says_why() -> None:
    worker = ray.remote(num_cpus=0)(BrokenWorker).remote()
    died = pytest.raises(ActorDied, match=r"(?s)agent loop worker 0 died: .*no such tool")
    with died, watched({"agent loop worker 0": worker}):
        threading.Event().wait(PATIENCE_S)


class AskedAgain:
    """A handle of an actor, whose first answers are others."""

    def __init__(self, actor: ActorHandle, *first: Any) -> None:
        self.__ray_ready__ = SimpleNamespace(remote=self._answer)
        self._actor, self._first = actor, list(first)
        self.went_on = threading.Event()

    def _answer(self) -> Any:
        if not self._first:
            self.went_on.set()
            return self._actor.__ray_ready__.remote()
        answer = self._first.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@ray.remote(num_cpus=0)
def fails() -> None:
    raise ValueError("of the answer")


def test_given_a_look_that_fails_when_the_actor_dies_afterwards_then_its_death_is_seen() -> None:
    worker = start_servers(1)["server-0"]
    asked: Any = AskedAgain(worker, fails.remote(), fails.remote())

    def dies_later() -> None:
        assert asked.went_on.wait(PATIENCE_S)
        ray.kill(worker)
        threading.Event().wait(PATIENCE_S)

    with pytest.raises(ActorDied, match=r"^worker died: "), watched({"worker": asked}):
        dies_later()


def test_given_a_watch_that_cannot_go_on_then_the_run_ends_with_a_sentence() -> None:
    """It ended in silence, and a death after that was never seen."""
    asked: Any = AskedAgain(start_servers(1)["server-0"], fails.remote(), RuntimeError("Ray is gone"))
    said = "^nobody sees any more whether worker live: RuntimeError: Ray is gone"
    with pytest.raises(ActorDied, match=said), watched({"worker": asked}):
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
