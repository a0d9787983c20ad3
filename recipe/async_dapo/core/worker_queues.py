"""Groups that wait in the queues of the workers, and places of those that generate: what starts next, and where."""

from collections import Counter, deque
from collections.abc import Iterable, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """A group that waits for a lane to run it."""

    prompt_uid: str
    unfinished: int  # trajectories that are to be generated
    held_back: int = 0  # further ones, which start when it has become certain
    is_certain: bool = False  # its finished trajectories differ: it will be valid
    has_begun: bool = False  # in an earlier round
    is_attached: bool = False  # requests of its that were frozen in their engines are still there
    oldest_version: int | None = None  # of its tokens
    home: int | None = None  # the worker where agent loops of it rest
    is_bound: bool = False  # some of those can only go on there


class Unfinished:
    """The unfinished trajectories of running groups. One that waits for a call needs no engine: its place among those
    that generate is free. A group with requests that are frozen in their engines has its places before it starts.

    Args:
        pool_size: N' of CoPRIS: a group starts while fewer trajectories generate; None = no limit.
        most: a group starts while fewer are unfinished, those that wait for calls included; None = no limit.
    """

    def __init__(self, *, pool_size: int | None, most: int | None) -> None:
        self._pool_size = pool_size
        self._most = most
        self._of_group: dict[str, int] = {}
        self._waiting: Counter[str] = Counter()  # of these
        self._total = self._total_waiting = self._held = 0
        self.waiting_max = 0  # most that waited at once [trajectories]

    def __len__(self) -> int:
        """Groups."""
        return len(self._of_group)

    def __contains__(self, uid: str) -> bool:
        return uid in self._of_group

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(self._of_group)

    @property
    def has_place(self) -> bool:
        """Whether another group may start, one that holds no places."""
        total = self._total + self._held
        generates = self._pool_size is None or total - self._total_waiting < self._pool_size
        return generates and (self._most is None or total < self._most)

    def hold(self, count: int) -> None:
        """Reserve places for so many trajectories that are frozen in their engines; a negative count frees them."""
        self._held += count

    def grow(self, count: int) -> None:
        """So many more trajectories may generate."""
        if self._pool_size is not None:
            self._pool_size += count

    def resize(self, *, pool_size: int | None, most: int | None) -> None:
        self._pool_size, self._most = pool_size, most

    def take_waiting_max(self) -> int:
        """The most that waited at once since this was asked last."""
        most, self.waiting_max = self.waiting_max, self._total_waiting
        return most

    def add(self, uid: str, count: int) -> None:
        """So many trajectories of a group start."""
        self._of_group[uid] = self._of_group.get(uid, 0) + count
        self._total += count

    def end(self, uid: str) -> bool:
        """A trajectory has been generated to its end. False if none of its group is known to run."""
        if not self._of_group.get(uid, 0):
            return False
        self._of_group[uid] -= 1
        self._total -= 1
        return True

    def wait(self, uid: str, change: int) -> None:
        """Add to the number of a group's trajectories that wait for calls: others may have their places meanwhile."""
        if uid in self._of_group:
            self._waiting[uid] += change
            self._total_waiting += change
            self.waiting_max = max(self.waiting_max, self._total_waiting)

    def remove(self, uid: str) -> int:
        """A group is over. Returns how many of its trajectories were unfinished."""
        count = self._of_group.pop(uid)
        self._total -= count
        self._total_waiting -= self._waiting.pop(uid, 0)
        return count


class WorkerQueues:
    """Waiting groups, split over the workers: one FIFO queue each, and a worker without groups takes from others.

    Frozen groups, whose requests rest in their engines, go first. A worker has at least as many lanes as groups that
    froze in it, so all of them start again at once.

    Args:
        num_workers: queues [count, >= 1].
    """

    def __init__(self, num_workers: int) -> None:
        self._queues: list[deque[tuple[int, str]]] = [deque() for _ in range(num_workers)]  # (position dealt, uid)
        self._num_dealt = 0
        self._at_home: set[str] = set()
        self._bound: set[str] = set()  # only their homes may take these
        self._attached: list[deque[tuple[int, str]]] = [deque() for _ in range(num_workers)]  # at home there
        self._attached_anywhere: deque[tuple[int, str]] = deque()

    @property
    def num_waiting(self) -> int:
        return sum(len(queue) for queue in [*self._queues, *self._attached, self._attached_anywhere])

    def has_for(self, worker: int, *, attached_only: bool = False, among: Set[str] | None = None) -> bool:
        """Whether there is a group that this worker may take, of these alone if they are named."""
        if self._attached[worker] or self._attached_anywhere:
            return True
        if attached_only:
            return False
        if among is not None:
            return self._first_of(among, worker) is not None
        return bool(self._queues[worker]) or sum(len(queue) for queue in self._queues) > len(self._bound)

    def extend(self, groups: Iterable[WaitingGroup]) -> None:
        """Deal groups to the workers in turn, so that they start in nearly the given order; a home goes before that."""
        for group in groups:
            uid, home = group.prompt_uid, group.home
            if group.is_attached:
                queue = self._attached_anywhere if home is None else self._attached[home]
            else:
                queue = self._queues[self._num_dealt % len(self._queues) if home is None else home]
                if home is not None:
                    self._at_home.add(uid)
                if group.is_bound:
                    self._bound.add(uid)
            queue.append((self._num_dealt, uid))
            self._num_dealt += 1

    def pop(self, worker: int, *, attached_only: bool = False, among: Set[str] | None = None) -> str | None:
        """A group with frozen requests, of this worker or of none; else the oldest of this worker's queue; when that
        is empty, of the fullest one, those at home last.

        Args:
            among: no other group, of those without frozen requests; None = any.
        """
        for attached in (self._attached[worker], self._attached_anywhere):
            if attached:
                return attached.popleft()[1]
        if attached_only:
            return None
        if among is not None:
            return None if (found := self._first_of(among, worker)) is None else self._take_out(*found)
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

    def _first_of(self, uids: Set[str], worker: int) -> tuple[int, tuple[int, str]] | None:
        """The queue and the entry of the first of these that this worker may take."""
        entries = (
            (index, entry)
            for index, queue in enumerate(self._queues)
            for entry in queue
            if entry[1] in uids and (index == worker or entry[1] not in self._bound)
        )
        return min(entries, key=lambda found: (found[0] != worker, found[1]), default=None)

    def _take_out(self, index: int, entry: tuple[int, str]) -> str:
        self._queues[index].remove(entry)
        self._bound.discard(entry[1])
        return entry[1]

    def clear(self) -> list[str]:
        """Take every waiting group out, in the order they were dealt."""
        queues = [*self._queues, *self._attached, self._attached_anywhere]
        rest = sorted(entry for queue in queues for entry in queue)
        for queue in queues:
            queue.clear()
        self._bound.clear()
        return [uid for _, uid in rest]
