"""Tokens of interrupted groups stay in Ray's object store, on the node that has generated them. A group below 100 KB,
which Ray returns inline, is kept by the process that called for it.

    worker --counts--> trainer's pool: counts and references
       |                      |
       +--tokens_of--> object store         (while the trainer trains)
       ^                  |   |
       +------unpark------+   +--> ticket   (through the coordinator: references, no tokens)

The pool decides by counts. What it changes of a parked group, the ages and what it takes out of the engines, is told
beside the reference. A reference is there before the tokens are: only those who want the tokens wait for them.
"""

import pickle
from collections.abc import Sequence

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from ..core.round_groups import WaitingGroup
from ..core.trajectory import PromptGroup
from .pictures import has_pictures

FETCH_TIMEOUT_S = 300.0  # of one group, some megabytes at most
GROUPS_A_CALL = 16  # A worker lets go of its own copies of these when all of them are parked.


class TokensLost(RuntimeError):
    """The agent loop worker that kept them, or its node, died; or it could not park them."""


def park(group: PromptGroup) -> None:
    """Put a group's tokens into the object store of this node; does nothing where there are none here."""
    if group.has_started and group.parked is None:
        group.parked = ray.put(group.take_tokens())


def park_interrupted(worker: ActorHandle, groups: Sequence[PromptGroup]) -> None:
    """Have a worker park the groups of which it has reported the counts, without waiting for it."""
    started = [group for group in groups if group.has_started]
    for first in range(0, len(started), GROUPS_A_CALL):
        some = started[first : first + GROUPS_A_CALL]
        places = worker.tokens_of.options(num_returns=len(some)).remote([group.uid for group in some])
        for group, place in zip(some, places if len(some) > 1 else [places], strict=True):
            group.parked = place


def ticket_of(group: PromptGroup) -> WaitingGroup:
    """What a lane needs to run a group. Its tokens are parked with it, and pictures do not pass the coordinator."""
    park(group)
    place = group.parked
    if place is None and has_pictures(group.prompt.get("raw_prompt")):
        place = ray.put(group)
    return WaitingGroup(
        prompt_uid=group.uid,
        unfinished=len(group.unfinished),
        is_certain=group.is_certain,
        content=pickle.dumps(group, protocol=5) if place is None else place,  # the group, or where it is
        ages=() if place is None else _ages(group),
        has_begun=group.has_started,
        oldest_version=min(group.versions(), default=None),
        is_attached=bool(group.attachments()),
        home=next((suspension.worker for suspension in group.suspensions()), None),
        is_bound=any(one.suspension is not None and not one.is_replayable for one in group.trajectories),
    )


async def unpark(ticket: WaitingGroup) -> PromptGroup:
    """The group of a ticket with its tokens.

    Raises:
        TokensLost: when they were not parked, or the process that kept them is gone.
    """
    if isinstance(ticket.content, bytes):
        return pickle.loads(ticket.content)
    try:
        parked = await ticket.content
    except RayError as error:
        raise _lost(ticket.prompt_uid, error) from error
    return _brought_up(parked, ticket.ages, is_attached=ticket.is_attached)


def with_tokens(group: PromptGroup) -> PromptGroup:
    """A group of the pool with its tokens, and with the results of calls that have ended since it was parked.

    Raises:
        TokensLost: when they were not parked, or the process that kept them is gone.
        TimeoutError: when they do not arrive.
    """
    if group.parked is None:
        return group
    try:
        parked = ray.get(group.parked, timeout=FETCH_TIMEOUT_S)
    except GetTimeoutError:
        raise TimeoutError(
            f"the tokens of prompt group {group.uid} have not come from the object store within {FETCH_TIMEOUT_S:.0f} s"
        ) from None
    except RayError as error:
        raise _lost(group.uid, error) from error
    whole = _brought_up(parked, _ages(group), is_attached=bool(group.attachments()))
    _take_arrived(whole)
    return whole


def _lost(uid: str, error: RayError) -> TokensLost:
    if isinstance(error, RayTaskError):
        return TokensLost(f"the tokens of prompt group {uid} could not be parked: {error.cause!r}")
    return TokensLost(f"an agent loop worker died, and with it the tokens of prompt group {uid}, which it kept")


def _take_arrived(group: PromptGroup) -> None:
    """A call that is still under way stays without a result: after a crash what it came to is unknown."""
    pending = {
        call.pending: call
        for trajectory in group.trajectories
        for call in trajectory.calls.values()
        if call.pending is not None
    }
    if pending:
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
        for ref in ready:
            pending[ref].result = ray.get(ref, timeout=FETCH_TIMEOUT_S)


def _ages(group: PromptGroup) -> tuple[int, ...]:
    return tuple(trajectory.age for trajectory in group.trajectories)


def _brought_up(group: PromptGroup, ages: tuple[int, ...], *, is_attached: bool) -> PromptGroup:
    """What was parked, with what has become of it since."""
    for trajectory, age in zip(group.trajectories, ages, strict=True):
        trajectory.age = age
    if not is_attached:
        group.detach()
    return group
