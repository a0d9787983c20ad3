"""A dict of bounded size, for keys that nobody removes."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentDict(OrderedDict[K, V]):
    """Forgets its oldest entry when it would hold more than `limit` [count]; setting a key makes it the newest."""

    def __init__(self, limit: int = 65_536) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)
