"""A stand-in for Ray's object store: what is put in comes out as a copy."""

import copy
from collections.abc import Generator
from typing import Any


class StoredObject:
    """Stands for `ray.put(value)` and the reference that it returns."""

    def __init__(self, value: Any) -> None:
        self._value = copy.deepcopy(value)

    def __await__(self) -> Generator[None, None, Any]:
        return self.load()
        yield

    def load(self, timeout: float | None = None) -> Any:
        """As `ray.get` of the reference."""
        return copy.deepcopy(self._value)
