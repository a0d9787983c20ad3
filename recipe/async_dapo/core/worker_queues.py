"""Which worker runs which waiting group: one FIFO queue a worker, and work stealing when one runs dry."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence


class WorkerQueues:
    """Waiting groups, split over the workers.

    Args:
        num_workers: queues [count, >= 1].
    """

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers={num_workers}: must be >= 1")
        self._queues: list[deque[tuple[int, str]]] = [deque() for _ in range(num_workers)]  # (position dealt, uid)
        self._num_dealt = 0
        self._at_home: set[str] = set()
        self._bound: set[str] = set()  # waiting groups that only their homes may take

    @property
    def num_waiting(self) -> int:
        return sum(len(queue) for queue in self._queues)

    def has_for(self, worker: int) -> bool:
        """Whether there is a group that this worker may take."""
        return bool(self._queues[worker]) or self.num_waiting > len(self._bound)

    def extend(self, uids: Sequence[str], homes: Mapping[str, int] | None = None, bound: Collection[str] = ()) -> None:
        """Deal groups to the workers in turn, so that they start in nearly the given order; a home goes before that.

        Args:
            bound: of those with a home, groups that can go on there only.
        """
        homes = homes or {}
        self._at_home.update(homes)
        self._bound.update(bound)
        for uid in uids:
            worker = homes.get(uid, self._num_dealt % len(self._queues))
            self._queues[worker].append((self._num_dealt, uid))
            self._num_dealt += 1

    def pop(self, worker: int) -> str | None:
        """The oldest group of this worker's queue; when that is empty, of the fullest one, those at home last."""
        if self._queues[worker]:
            uid = self._queues[worker].popleft()[1]
            self._bound.discard(uid)
            return uid
        for kept in (self._at_home, self._bound):
            for queue in sorted(self._queues, key=len, reverse=True):
                for entry in queue:
                    if entry[1] not in kept:
                        queue.remove(entry)
                        return entry[1]
        return None

    def clear(self) -> list[str]:
        """Take every waiting group out, in the order they were dealt."""
        rest = sorted(entry for queue in self._queues for entry in queue)
        for queue in self._queues:
            queue.clear()
        self._bound.clear()
        return [uid for _, uid in rest]
