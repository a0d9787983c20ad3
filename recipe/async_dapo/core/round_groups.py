"""The groups of an open round: the state of each, which starts next on which worker, and how much runs.

    add -> BEGUN | FRESH  --start-->  RUNNING  --remove--> gone: its outcome is the round's

Waiting groups stand in lines, in the order in which they were added: one line for each state, part and affinity. A
worker starts those of the lowest rank first. It takes a group that rests on another worker only if it has no other one,
and if that one is not pinned.

While a tool runs its group stays RUNNING, on its worker, without a lease: a lease is for one request
(`engines/engine_requests.py`). Calls, verl's tools among them, come to `CallRunner.call` of
`extensions/agents/call_runner.py`, and after a moment its `InCalls` reports GroupEvent.IDLE: the trajectory needs no
engine, and others generate in its stead, unless slots bound what runs (`rollout_pool_size=null`). At a stop the group
is given back like any other. Where tokens are kept the pool has it as buffered, it waits as BEGUN in the next round,
and the call goes on in the worker; with `discard` the call is cancelled and the group starts afresh.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any


class GroupState(StrEnum):
    """Where a group of the open round is."""

    BEGUN = "begun"  # waits, with what it has generated in earlier rounds
    FRESH = "fresh"  # waits, and has generated nothing
    RUNNING = "running"  # a worker runs it, some of its trajectories may be idle


WAITING = (GroupState.BEGUN, GroupState.FRESH)  # in the order in which they start

# The waiting groups that may start, by state and part -> rank: those of a lower one start first.
Startable = Mapping[tuple[GroupState, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """A group that waits for a slot to run it."""

    prompt_uid: str
    unfinished: int  # trajectories that are to be generated
    is_certain: bool = False  # its finished trajectories differ: it will be valid
    has_begun: bool = False  # in an earlier round
    oldest_version: int | None = None  # of its tokens
    affinity: int | None = None  # the worker where trajectories of it rest
    is_pinned: bool = False  # some of those can only go on there
    content: Any = None  # what a slot needs to run it; opaque to core, see `parking.py`
    ages: tuple[int, ...] = ()  # of its trajectories, where it is parked
    source: str = ""  # see `PromptGroup.source`

    @property
    def state(self) -> GroupState:
        return GroupState.BEGUN if self.has_begun else GroupState.FRESH


@dataclass(slots=True)
class _Entry:
    """A group of the round, and where it is."""

    part: str
    state: GroupState
    is_certain: bool
    unfinished: int  # trajectories
    idle: int = 0  # of these, while it runs: they need no engine for a while


@dataclass(frozen=True, slots=True)
class _Line:
    """Which waiting groups stand in one line; those that are pinned only their worker starts."""

    state: GroupState
    part: str
    affinity: int | None
    is_pinned: bool


class RoundGroups:
    """One entry for each group that waits or runs, and the totals over them.

    Args:
        pool_size: N' of CoPRIS: a group starts while fewer trajectories generate; None = no limit.
        most_unfinished: a group starts while fewer are unfinished, idle ones included; None = no limit.
    """

    def __init__(self, *, pool_size: int | None, most_unfinished: int | None) -> None:
        self._pool_size, self._most_unfinished = pool_size, most_unfinished
        self._entries: dict[str, _Entry] = {}  # waiting ones as added, running ones as started
        self._lines: dict[_Line, deque[tuple[int, str]]] = {}  # (position in the order of all, uid)
        self._order = count()
        self._num: Counter[tuple[GroupState, str]] = Counter()  # by part
        self._certain: Counter[str] = Counter()
        self._unfinished = self._idle = 0  # trajectories of running groups
        self.idle_max = 0  # most at once [trajectories]

    def __contains__(self, uid: str) -> bool:
        """Whether it runs."""
        return uid in self._entries and self._entries[uid].state is GroupState.RUNNING

    def num(self, *states: GroupState, part: str | None = None) -> int:
        """Groups in these states; None = of any part."""
        return sum(count for (state, own), count in self._num.items() if state in states and part in (None, own))

    def num_certain(self, part: str) -> int:
        """Groups of a part that are sure to be valid."""
        return self._certain[part]

    def part_of(self, uid: str) -> str:
        return self._entries[uid].part

    def uids(self, *states: GroupState) -> tuple[str, ...]:
        """Of groups in these states: waiting ones in the order in which they were added, running ones as started."""
        return tuple(uid for uid, entry in self._entries.items() if entry.state in states)

    @property
    def has_capacity(self) -> bool:
        """Whether another group may start."""
        generate = self._unfinished - self._idle
        is_open = self._pool_size is None or generate < self._pool_size
        return is_open and (self._most_unfinished is None or self._unfinished < self._most_unfinished)

    def resize(self, *, pool_size: int | None, most_unfinished: int | None) -> None:
        self._pool_size, self._most_unfinished = pool_size, most_unfinished

    def add(self, group: WaitingGroup, part: str) -> None:
        """Add a waiting group of a part, behind those that have been added."""
        state, uid = group.state, group.prompt_uid
        self._entries[uid] = _Entry(part, state, is_certain=group.is_certain, unfinished=group.unfinished)
        self._num[state, part] += 1
        self._certain[part] += group.is_certain
        is_pinned = group.affinity is not None and group.is_pinned
        line = self._lines.setdefault(_Line(state, part, group.affinity, is_pinned), deque())
        line.append((next(self._order), uid))

    def num_of(self, startable: Startable) -> int:
        """Groups that may start."""
        return sum(self._num[kind] for kind in startable)

    def next_for(self, worker: int, startable: Startable) -> str | None:
        """The group that this worker starts next, of those that may start; None if it may take none of them."""
        line = self._next_line(worker, startable)
        return None if line is None else self._lines[line][0][1]

    def start(self, worker: int, startable: Startable) -> str | None:
        """Let this worker run `next_for`; None if there is none."""
        line = self._next_line(worker, startable)
        if line is None:
            return None
        _, uid = self._lines[line].popleft()
        if not self._lines[line]:
            del self._lines[line]
        entry = self._entries.pop(uid)
        self._unfinished += entry.unfinished
        self._num[entry.state, entry.part] -= 1
        self._num[GroupState.RUNNING, entry.part] += 1
        entry.state = GroupState.RUNNING
        self._entries[uid] = entry
        return uid

    def end_trajectory(self, uid: str) -> None:
        """A trajectory of a running group has been generated to its end; ignored if all of them have."""
        if uid in self and self._entries[uid].unfinished:
            self._entries[uid].unfinished -= 1
            self._unfinished -= 1

    def note_idle(self, uid: str, change: int) -> None:
        """Add to the number of a running group's trajectories that are idle: others may run in their stead."""
        if uid in self:
            self._entries[uid].idle += change
            self._idle += change
            self.idle_max = max(self.idle_max, self._idle)

    def forget_idle_max(self) -> None:
        """Look for the most that are idle at once from now on."""
        self.idle_max = self._idle

    def mark_certain(self, uid: str) -> None:
        """A running group is sure to be valid."""
        if uid in self and not self._entries[uid].is_certain:
            self._entries[uid].is_certain = True
            self._certain[self._entries[uid].part] += 1

    def remove(self, uid: str) -> None:
        """A running group is over."""
        entry = self._entries.pop(uid)
        self._num[GroupState.RUNNING, entry.part] -= 1
        self._unfinished -= entry.unfinished
        self._idle -= entry.idle
        self._certain[entry.part] -= entry.is_certain

    def _next_line(self, worker: int, startable: Startable) -> _Line | None:
        """The line whose first group this worker starts next."""
        lines = [line for line in self._lines if (line.state, line.part) in startable]
        near = [line for line in lines if line.affinity in (None, worker)]
        far = [line for line in lines if not line.is_pinned]
        return min(near or far, key=lambda line: (startable[line.state, line.part], self._lines[line][0]), default=None)
