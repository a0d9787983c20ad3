"""Actors that will call each other are connected before: while a network is cut for a moment, a call waits whose
connection is there, and one whose connection must be made first fails at once.
"""

from collections.abc import Sequence
from typing import Any

from ray import ObjectRef
from ray.actor import ActorHandle


def introduce(actor: ActorHandle, others: Sequence[ActorHandle]) -> ObjectRef:
    """Have it call each of the others; nobody waits for their answers."""
    return actor.__ray_call__.remote(_greet, list(others))


def _greet(_: Any, others: Sequence[ActorHandle]) -> None:
    for other in others:
        other.__ray_ready__.remote()
