"""Tokens of interrupted groups stay in Ray's object store, on the node that has generated them.

    worker --counts--> trainer's pool: counts and references
       |                      |
       +----park----> object store          (while the trainer trains)
       ^                  |   |
       +------unpark------+   +--> ticket   (through the coordinator: references, no tokens)

The pool decides by counts. What it changes of a parked group, the ages, travels beside the reference. To ask for a
reference is to wait until its worker has parked all that was interrupted there.
"""

import asyncio
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ..core.round_groups import WaitingGroup
from ..core.trajectory import PromptGroup

MOST_SENT_BYTES = 2**15  # of a group that passes the coordinator itself; one with pictures is larger
FETCH_TIMEOUT_S = 300.0  # of one group, some megabytes at most, or until a worker has parked all of its groups


class TokensLost(RuntimeError):
    """The agent loop worker that kept them, or its node, died; or it could not park them."""


def park(group: PromptGroup) -> None:
    """Put a group's tokens into the object store of this node; does nothing where there are none here."""
    if group.has_started and group.parked is None:
        group.parked = ray.put(group.take_tokens())


async def park_all(groups: list[PromptGroup]) -> list[ObjectRef]:
    """Put groups into the object store of this node, and let go of them; the event loop goes on between two of them."""
    places = []
    while groups:
        places.append(ray.put(groups.pop(0)))
        await asyncio.sleep(0)
    return places


class _Parking:
    """A worker's call that parks groups. The worker owns what it puts: references of the trainer's own cost each slot
    that takes a group more than the trainer saves.
    """

    def __init__(self, answer: ObjectRef) -> None:
        self._answer = answer
        self._places: list[ObjectRef] | None = None

    def place(self, index: int, uid: str) -> ObjectRef:
        """Where one of the groups is; waits until all of them are parked. Until then a group has this call in place of
        its reference.
        """
        if self._places is None:
            self._places = _fetch(self._answer, uid)
        return self._places[index]


def park_interrupted(worker: ActorHandle, groups: Sequence[PromptGroup]) -> None:
    """Have a worker park the groups of which it has reported the counts, without waiting for it."""
    started = [group for group in groups if group.has_started]
    if started:
        parking = _Parking(worker.park.remote([group.uid for group in started]))
        for index, group in enumerate(started):
            group.parked = partial(parking.place, index, group.uid)


def _place_of(group: PromptGroup) -> Any:
    if isinstance(group.parked, partial):  # of which it was not known yet
        group.parked = group.parked()
    return group.parked


def _fetch(place: Any, uid: str) -> Any:
    """What is there: a group, or where a worker has put its groups.

    Raises:
        TokensLost: when they were not parked, or the process that kept them is gone.
        TimeoutError: when they do not arrive.
    """
    try:
        return ray.get(place, timeout=FETCH_TIMEOUT_S)
    except GetTimeoutError:
        raise TimeoutError(
            f"the tokens of prompt group {uid} have not come from the object store within {FETCH_TIMEOUT_S:.0f} s"
        ) from None
    except RayError as error:
        raise _lost(uid, error) from error


def ticket_of(group: PromptGroup) -> WaitingGroup:
    """What a slot needs to run a group: where it is, or a fresh one itself, if that is small."""
    park(group)
    place, content = _place_of(group), b""
    if is_fresh := place is None:
        content = pickle.dumps(group, protocol=5)
        place = ray.put(content) if len(content) > MOST_SENT_BYTES else None
    return WaitingGroup(
        prompt_uid=group.uid,
        unfinished=len(group.unfinished),
        is_certain=group.is_certain,
        content=content if place is None else place,
        ages=() if is_fresh else _ages(group),
        has_begun=group.has_started,
        source=group.source,
        oldest_version=min(group.versions(), default=None),
        affinity=next((suspension.worker for suspension in group.suspensions()), None),
        is_pinned=any(one.suspension is not None and not one.is_replayable for one in group.trajectories),
    )


async def unpark(ticket: WaitingGroup) -> PromptGroup:
    """The group of a ticket with its tokens.

    Raises:
        TokensLost: when they were not parked, or the process that kept them is gone.
    """
    content = ticket.content
    if not isinstance(content, bytes):
        try:
            content = await content
        except RayError as error:
            raise _lost(ticket.prompt_uid, error) from error
    return pickle.loads(content) if isinstance(content, bytes) else _with_ages(content, ticket.ages)


def with_tokens(group: PromptGroup) -> PromptGroup:
    """A group of the pool with its tokens.

    Raises:
        TokensLost: when they were not parked, or the process that kept them is gone.
        TimeoutError: when they do not arrive.
    """
    if group.parked is None:
        return group
    return _with_ages(_fetch(_place_of(group), group.uid), _ages(group))


def _lost(uid: str, error: RayError) -> TokensLost:
    if isinstance(error, RayTaskError):
        return TokensLost(f"the tokens of prompt group {uid} could not be parked: {error.cause!r}")
    return TokensLost(f"an agent loop worker died, and with it the tokens of prompt group {uid}, which it kept")


def _ages(group: PromptGroup) -> tuple[int, ...]:
    return tuple(trajectory.age for trajectory in group.trajectories)


def _with_ages(group: PromptGroup, ages: tuple[int, ...]) -> PromptGroup:
    """What was parked, with the ages that it has now."""
    for trajectory, age in zip(group.trajectories, ages, strict=True):
        trajectory.age = age
    return group
