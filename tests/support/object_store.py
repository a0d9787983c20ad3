"""A stand-in for Ray's object store: what is put in comes out as a copy."""

import pickle
from collections.abc import Generator
from typing import Any


class StoredObject:
    """Stands for `ray.put(value)` and the reference that it returns."""

    def __init__(self, value: Any) -> None:
        self._pickled = pickle.dumps(value)

    def __await__(self) -> Generator[None, None, Any]:
        return self.load()
        yield

    def load(self, timeout: float | None = None) -> Any:
        """As `ray.get` of the reference."""
        return pickle.loads(self._pickled)
