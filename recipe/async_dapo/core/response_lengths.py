"""How much longer a response will get, from the lengths of those that ended lately."""

from bisect import bisect_right
from collections import deque
from itertools import accumulate

REMEMBERED = 2048  # responses
NEW_BEFORE_SORTED = 64  # responses that may be missing from what is asked


class ResponseLengths:
    """Args:
    limit_tok: responses end there at the latest [tokens].
    """

    def __init__(self, limit_tok: int) -> None:
        self._limit_tok = limit_tok
        self._recent: deque[int] = deque(maxlen=REMEMBERED)
        self._unsorted = 0
        self._sorted: list[int] = []
        self._sums: list[int] = [0]  # of the first i lengths

    def add(self, length_tok: int) -> None:
        self._recent.append(length_tok)
        self._unsorted += 1

    def remainder_tok(self, generated_tok: int) -> float:
        """Expected tokens until the end of a response that has so many already; half of what is allowed before anything
        of that length has been seen."""
        if self._unsorted >= min(NEW_BEFORE_SORTED, len(self._recent)) > 0:
            self._sorted, self._unsorted = sorted(self._recent), 0
            self._sums = [0, *accumulate(self._sorted)]
        first = bisect_right(self._sorted, generated_tok)
        longer = len(self._sorted) - first
        if not longer:
            return max(0, self._limit_tok - generated_tok) / 2
        return (self._sums[-1] - self._sums[first]) / longer - generated_tok
