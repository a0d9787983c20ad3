"""The unfinished trajectories of a round's running groups. One that waits for a call needs no engine: its place among
those that generate is another's. A group with requests that are frozen in their engines has its places before it
starts.
"""

from collections import Counter


class Unfinished:
    """Args:
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

    def hold(self, change: int) -> None:
        """So many more trajectories have their places before their groups start, or fewer."""
        self._held += change

    def grow(self, count: int) -> None:
        """So many more trajectories may generate."""
        if self._pool_size is not None:
            self._pool_size += count

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
        """So many more trajectories of a group wait for calls, or fewer."""
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
