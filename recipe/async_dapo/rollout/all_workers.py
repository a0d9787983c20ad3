"""All agent loop workers of a run: how they are connected with what they call, and where their trajectories are."""

from collections.abc import Sequence
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import RayError

from ..engines.client import AsyncDAPOLLMClient

PLACES_TIMEOUT_S = 10.0  # for a worker to say where its trajectories are, before the run ends
CONNECT_TIMEOUT_S = 600.0  # for a worker to import all it needs, on a busy node


class RolloutError(RuntimeError):
    """A round cannot go on: a part of the system died, or a time limit was passed."""


def connected(
    workers: Sequence[ActorHandle],
    coordinator: ActorHandle,
    llm_client: AsyncDAPOLLMClient,
    reward_workers: Sequence[ActorHandle],
) -> list[ObjectRef]:
    """Connect the workers with each other, a coordinator, the engines' client and verl's reward workers. Returns what
    has been called to do so.

    Raises:
        RolloutError: if a worker has not answered within `CONNECT_TIMEOUT_S`.
    """
    balancer = llm_client._load_balancer
    # Ray runs calls of such an actor in any order: a worker is connected when it has been attached.
    attached = [worker.attach.remote(coordinator, index, worker) for index, worker in enumerate(workers)]
    calls = [*attached]
    calls += [
        worker.connect.remote(llm_client, reward_workers, own) for worker, own in zip(workers, attached, strict=True)
    ]
    calls += [_call_each(worker, [coordinator, balancer, *reward_workers]) for worker in workers]
    from_coordinator = _call_each(coordinator, [balancer])
    _, late = ray.wait(calls, num_returns=len(calls), timeout=CONNECT_TIMEOUT_S)
    if late:
        silent = sorted({calls.index(call) % len(workers) for call in late})
        raise RolloutError(f"agent loop workers {silent} have not started within {CONNECT_TIMEOUT_S:.0f} s")
    return [*calls, from_coordinator]


def still_running(workers: Sequence[ActorHandle]) -> str:
    """Which workers have trajectories that have not ended, and where one of each waits."""
    found = []
    for index, worker in enumerate(workers):
        name = f"agent loop worker {index}"
        try:
            places = ray.get(worker.running_places.remote(), timeout=PLACES_TIMEOUT_S)
        except RayError:
            found.append(f"{name} does not say where its trajectories are: something blocks its event loop")
            continue
        if places:
            found.append(f"{name} has {len(places)} trajectories that have not ended, one for {places[0]}")
    return "; ".join(found) or "no worker has a trajectory that has not ended"


def _call_each(actor: ActorHandle, others: Sequence[ActorHandle]) -> ObjectRef:
    """Have an actor call others, without waiting for their answers, so that it is connected with them. While a network
    is cut for a moment, a call on a connection that is there waits; one that needs a new connection fails at once.
    """

    def call(_: Any) -> None:
        for other in others:
            other.__ray_ready__.remote()

    return actor.__ray_call__.remote(call)
