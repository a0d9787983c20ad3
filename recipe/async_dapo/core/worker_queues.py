"""Which worker runs which waiting group: one FIFO queue a worker, and work stealing when one runs dry.

Groups with requests that are frozen in their engines go first: each lane asks for one of these before any other, and
those that rest in a worker were in its lanes at the stop, so lanes are never too few to start all of them.
"""

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
        self._attached: list[deque[tuple[int, str]]] = [deque() for _ in range(num_workers)]  # at home there
        self._attached_anywhere: deque[tuple[int, str]] = deque()

    @property
    def num_waiting(self) -> int:
        return sum(len(queue) for queue in [*self._queues, *self._attached, self._attached_anywhere])

    def has_for(self, worker: int, *, attached_only: bool = False) -> bool:
        """Whether there is a group that this worker may take."""
        if self._attached[worker] or self._attached_anywhere:
            return True
        if attached_only:
            return False
        return bool(self._queues[worker]) or sum(len(queue) for queue in self._queues) > len(self._bound)

    def extend(
        self,
        uids: Sequence[str],
        homes: Mapping[str, int] | None = None,
        bound: Collection[str] = (),
        attached: Collection[str] = (),
    ) -> None:
        """Deal groups to the workers in turn, so that they start in nearly the given order; a home goes before that.

        Args:
            bound: of those with a home, groups that can go on there only.
            attached: groups with requests that are frozen in their engines.
        """
        homes = homes or {}
        self._at_home.update(uid for uid in homes if uid not in attached)
        self._bound.update(uid for uid in bound if uid not in attached)
        for uid in uids:
            worker = homes.get(uid, self._num_dealt % len(self._queues))
            queue = self._queues[worker]
            if uid in attached:
                queue = self._attached[worker] if uid in homes else self._attached_anywhere
            queue.append((self._num_dealt, uid))
            self._num_dealt += 1

    def pop(self, worker: int, *, attached_only: bool = False) -> str | None:
        """A group with frozen requests, of this worker or of nobody; else the oldest of this worker's queue; when that
        is empty, of the fullest one, those at home last."""
        for attached in (self._attached[worker], self._attached_anywhere):
            if attached:
                return attached.popleft()[1]
        if attached_only:
            return None
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
        queues = [*self._queues, *self._attached, self._attached_anywhere]
        rest = sorted(entry for queue in queues for entry in queue)
        for queue in queues:
            queue.clear()
        self._bound.clear()
        return [uid for _, uid in rest]
