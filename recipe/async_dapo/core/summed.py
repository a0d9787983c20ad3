"""Dataclasses that are merged field by field: sums, and of some fields the latest or the largest value."""

from dataclasses import fields
from typing import Any, ClassVar, Self, cast


class Summed:
    """A dataclass that counts over a time: `a + b` counts over the time of `a` and then of `b`. Fields are added, of
    dicts the values of each key.
    """

    __slots__ = ()
    LATEST: ClassVar[tuple[str, ...]] = ()  # fields that say how it is at one time: those of `b` count
    LARGEST: ClassVar[tuple[str, ...]] = ()  # fields of which the larger value counts

    def __add__(self, later: Self) -> Self:
        names = [one.name for one in fields(cast(Any, self))]
        return type(self)(**{name: self._joined(name, getattr(self, name), getattr(later, name)) for name in names})

    def _joined(self, name: str, earlier: Any, later: Any) -> Any:
        if name in self.LATEST:
            return later
        if name in self.LARGEST:
            return max(earlier, later)
        if isinstance(earlier, dict):
            return earlier | {key: earlier[key] + value if key in earlier else value for key, value in later.items()}
        return earlier + later
