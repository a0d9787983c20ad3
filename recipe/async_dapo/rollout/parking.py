"""Tokens of interrupted groups stay in Ray's object store, on the node that has generated them.

    worker --park--> object store         trainer's pool: counts and references
       ^                  |                      |
       +------unpark------+      ticket <--------+   (through the coordinator: references, no tokens)

The pool decides by counts. What it changes of a parked group, the ages and what it takes out of the engines, is told
beside the reference.
"""

import pickle

import ray

from ..core.screening import Screening
from ..core.trajectory import PromptGroup
from .open_round import Ticket


def park(group: PromptGroup) -> None:
    """Put a group's tokens into the object store of this node; does nothing where there are none here."""
    if group.has_started and group.parked is None:
        group.park(ray.put(group))


def ticket_of(group: PromptGroup, screening: Screening) -> Ticket:
    """What a lane needs to run a group. Its tokens are parked with it."""
    park(group)
    is_parked = group.parked is not None
    return Ticket(
        prompt_uid=group.uid,
        unfinished=len(screening.to_run(group)),
        held_back=len(screening.held_back(group)),
        is_certain=group.is_certain,
        content=group.parked if is_parked else pickle.dumps(group, protocol=5),
        ages=_ages(group) if is_parked else (),
        is_attached=bool(group.attachments()),
    )


async def group_of(ticket: Ticket) -> PromptGroup:
    """The group of a ticket with its tokens.

    Raises:
        RayError: when the node that had them is gone.
    """
    if isinstance(ticket.content, bytes):
        return pickle.loads(ticket.content)
    return _brought_up(await ticket.content, ticket.ages, is_attached=ticket.is_attached)


def with_tokens(group: PromptGroup) -> PromptGroup:
    """A group of the pool with its tokens.

    Raises:
        RayError: when the node that had them is gone.
    """
    if group.parked is None:
        return group
    return _brought_up(ray.get(group.parked), _ages(group), is_attached=bool(group.attachments()))


def _ages(group: PromptGroup) -> tuple[int, ...]:
    return tuple(trajectory.age for trajectory in group.trajectories)


def _brought_up(group: PromptGroup, ages: tuple[int, ...], *, is_attached: bool) -> PromptGroup:
    """What was parked, with what has become of it since."""
    for trajectory, age in zip(group.trajectories, ages, strict=True):
        trajectory.age = age
    if not is_attached:
        group.detach()
    return group
