"""Records that can be added: one of a part, and one of what came after it, make the record of both."""

from dataclasses import fields
from typing import Any, ClassVar, Self, cast


class Summed:
    """A dataclass whose records are added field by field; of dicts the values of each key. What holds at one time,
    rather than over a time, is that of the later record.
    """

    __slots__ = ()
    LATEST: ClassVar[tuple[str, ...]] = ()  # fields that hold at one time
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
