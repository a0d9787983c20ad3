"""Whether any prompt was lost or trained twice, over all the lives of a run.

Every checkpoint is preceded by a note: what has been drawn since the last one, what was trained, what ended otherwise,
and what is held. A life that begins at step s takes back what was noted of s and later.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Of the steps since the checkpoint before; prompts by their keys."""

    life: int
    step: int  # the last one
    drawn: tuple[str, ...]
    trained: tuple[str, ...]
    ended: tuple[str, ...]  # filtered or failed
    held: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    steps: int
    trained: int  # prompts
    lost: int
    twice: int


def audit(notes: Iterable[Note]) -> Audit:
    """Notes in the order in which they were written."""
    kept: list[Note] = []
    lost = 0
    for note in notes:
        taken_back = [old for old in kept if old.step >= note.step]
        kept = [old for old in kept if old.step < note.step]
        if taken_back:
            lost += _differ(taken_back[0].drawn, note.drawn)
        kept.append(note)
    drawn, trained, ended = (Counter(key for note in kept for key in getattr(note, kind)) for kind in _KINDS)
    left = Counter(kept[-1].held) if kept else Counter()
    accounted = trained + ended + left
    return Audit(
        steps=kept[-1].step if kept else 0,
        trained=trained.total(),
        lost=lost + (drawn - accounted).total(),
        twice=(accounted - drawn).total(),
    )


_KINDS = ("drawn", "trained", "ended")


def _differ(first: Sequence[str], second: Sequence[str]) -> int:
    """Prompts of steps that were done twice which were not drawn in the same order."""
    return sum(one != other for one, other in zip(first, second, strict=False))


def read(lines: Iterable[str]) -> list[Note]:
    return [msgspec.json.decode(line, type=Note) for line in lines]
