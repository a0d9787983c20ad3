"""What was answered to each prompt at its last visit: drafts for its next answers."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

LIMIT_BYTES = 1 << 30  # of all prompts, four bytes a token
MOST_ANSWERS = 2  # of a prompt: an engine spends about a microsecond of its host on each token


class EarlierAnswers:
    """Places of answers by prompt, as many as a limit allows: prompts that were not visited for longest go first."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._places: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def keep(self, key: str, place: Any, size_bytes: int) -> None:
        """The prompt's last answers from now on.

        Args:
            place: where they are; opaque to core.
        """
        self._drop(key)
        self._places[key] = place, size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self._limit_bytes:
            self._drop(next(iter(self._places)))

    def of(self, key: str) -> Any:
        """None where nothing is kept."""
        return self._places.get(key, (None, 0))[0]

    def items(self) -> Iterator[tuple[str, Any]]:
        """Those that go first come first."""
        return ((key, place) for key, (place, _) in self._places.items())

    def _drop(self, key: str) -> None:
        if key in self._places:
            self.size_bytes -= self._places.pop(key)[1]


def chosen(answers: Iterable[bytes]) -> list[bytes]:
    """Of one visit, those to keep: the longest, which take the longest to generate."""
    return sorted(answers, key=len, reverse=True)[:MOST_ANSWERS]
