"""Engines that never stop together, and groups that begin while the trainer trains: whatever the order of hand-overs,
updates, deaths and new replicas, no token is too stale, replicas work, and each gets the newest weights.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recipe.async_dapo.separate.deadlines import Deadlines
from recipe.async_dapo.separate.rolling_update import OUT_SHARE, Phase, RollingUpdate

PLACES = 2  # of a replica


@dataclass
class Group:
    """A prompt group of one trajectory."""

    uid: str
    replica: str | None = None  # None = it waits for one
    versions: list[int] = field(default_factory=list)  # of its tokens


class Continuous(RuleBasedStateMachine):
    """A run reduced to these two machines; everything else is left to chance."""

    @initialize(
        replicas=st.integers(1, 18),
        drains=st.booleans(),
        max_lag=st.sampled_from([None, 0, 2]),
        groups=st.sampled_from([2, 4]),
        part=st.sampled_from([1, 2]),
        max_staleness=st.integers(0, 3),
    )
    def begin_run(
        self, replicas: int, drains: bool, max_lag: int | None, groups: int, part: int, max_staleness: int
    ) -> None:
        self.drains, self.max_staleness, self.part, self.max_lag = drains, max_staleness, part, max_lag
        self.rolling = RollingUpdate(version=0, drains=drains, max_lag=max_lag)
        self.deadlines = Deadlines(target_valid_groups=groups, max_staleness=max_staleness)
        self.groups: dict[str, Group] = {}  # that run or wait for a replica
        self.ended: dict[str, Group] = {}  # valid, and not trained
        self.alive: dict[str, Phase] = {}
        self.updating: dict[str, int] = {}  # the version that each is to get
        self.names = self.oldest = 0
        self.have_served: set[str] = set()
        self.replicas_ever = 0
        for _ in range(replicas):
            self.join()
        for name in list(self.updating):
            self.end_update(name)

    # ---- what may happen ----

    @precondition(lambda self: self.may_begin)
    @rule()
    def begin(self) -> None:
        self.names += 1
        group = Group(f"group-{self.names}")
        self.deadlines.begin(group.uid, self.rolling.oldest_version)
        self.groups[group.uid] = group
        self.place()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 3))
    def sample(self, data: st.DataObject, count: int) -> None:
        group = data.draw(st.sampled_from(self.running))
        group.versions += [self.rolling.version_of(group.replica)] * count

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_valid=st.booleans())
    def end(self, data: st.DataObject, is_valid: bool) -> None:
        self.end_group(data.draw(st.sampled_from(self.running)), is_valid)

    @rule()
    def hand_over(self) -> None:
        step = self.deadlines.step
        for uid in self.deadlines.hand_over(self.part) or ():
            versions = self.ended.pop(uid).versions
            assert all(0 <= step - 1 - version <= self.max_staleness for version in versions)
        if self.deadlines.step > step:
            self.rolling.publish(step)
            self.turn()

    @precondition(lambda self: self.updating)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        self.end_update(data.draw(st.sampled_from(sorted(self.updating))))

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[name]
        self.updating.pop(name, None)
        self.rolling.leave(name)
        assert self.rolling.phase_of(name) is self.rolling.updated(name) is None
        for group in self.groups.values():
            if group.replica == name:
                group.replica = None
        self.turn()

    @rule()
    def join(self) -> None:
        self.replicas_ever += 1
        name = f"replica-{self.replicas_ever}"
        move = self.rolling.join(name)
        self.alive[name], self.updating[name] = move.phase, move.version

    @rule(data=st.data(), times=st.integers(1, 20))
    def go_on_but_for_one_group_and_one_replica(self, data: st.DataObject, times: int) -> None:
        """As long as others can."""
        group = data.draw(st.sampled_from([None, *self.groups]))
        replica = data.draw(st.sampled_from([None, *self.updating]))
        for _ in range(times):
            self.go_on_a_little([group], [replica])

    # ---- what shells do ----

    @property
    def may_begin(self) -> bool:
        return self.deadlines.may_begin(self.rolling.oldest_version)

    @property
    def running(self) -> list[Group]:
        """Those whose replica generates."""
        return [
            group for group in self.groups.values() if group.replica and self.alive[group.replica] is not Phase.UPDATING
        ]

    @property
    def inflight(self) -> dict[str, int]:
        return {name: sum(one.replica == name for one in self.groups.values()) for name in self.alive}

    def end_group(self, group: Group, is_valid: bool) -> None:
        group.versions.append(self.rolling.version_of(group.replica))
        del self.groups[group.uid]
        self.deadlines.end(group.uid, is_valid=is_valid)
        if is_valid:
            self.ended[group.uid] = group
        self.turn()

    def end_update(self, name: str) -> None:
        move = self.rolling.updated(name)
        version = self.updating.pop(name)
        assert move is not None and self.rolling.version_of(name) == version
        self.alive[name] = move.phase
        if move.phase is Phase.SERVING:
            self.have_served.add(name)
        else:
            self.updating[name] = move.version
        self.turn()

    def turn(self) -> None:
        """Make all moves, and place what waits."""
        inflight = self.inflight
        for move in self.rolling.moves(inflight):
            assert self.alive[move.replica_id] is not Phase.UPDATING, "told twice"
            if move.phase is Phase.UPDATING:
                assert not (self.drains and inflight[move.replica_id]), "a trajectory would change its version"
                self.updating[move.replica_id] = move.version
            self.alive[move.replica_id] = move.phase
        assert not self.rolling.moves(inflight), "told twice"
        self.place()

    def place(self) -> None:
        inflight = self.inflight
        for group in self.groups.values():
            free = [name for name, phase in self.alive.items() if phase is Phase.SERVING and inflight[name] < PLACES]
            if group.replica is None and free:
                group.replica = free[0]
                inflight[free[0]] += 1

    # ---- what must hold ----

    @invariant()
    def all_agree(self) -> None:
        assert self.alive == {name: self.rolling.phase_of(name) for name in self.alive}
        assert self.deadlines.num_running == len(self.groups) and self.deadlines.num_valid == len(self.ended)

    @invariant()
    def no_replica_is_idle_while_work_waits(self) -> None:
        inflight = self.inflight
        for name, phase in self.alive.items():
            assert phase is not Phase.DRAINING or inflight[name], "it could be updated"
        if any(group.replica is None for group in self.groups.values()):
            assert all(inflight[name] == PLACES for name, phase in self.alive.items() if phase is Phase.SERVING)

    @invariant()
    def only_a_few_are_out(self) -> None:
        """Of those that have served, if none has died; those too far behind come on top."""
        served = self.have_served & self.alive.keys()
        out = [name for name in served if self.alive[name] is not Phase.SERVING]
        newest = self.rolling.newest_version
        late = [
            name for name in out if self.max_lag is not None and newest - self.rolling.version_of(name) > self.max_lag
        ]
        if not late and served == self.have_served:
            assert len(out) <= max(1, int(OUT_SHARE * len(served)))

    @invariant()
    def what_serves_is_no_older_than_what_groups_begin_under(self) -> None:
        assert self.oldest <= self.rolling.oldest_version <= self.rolling.newest_version
        self.oldest = self.rolling.oldest_version
        serving = [self.rolling.version_of(name) for name, phase in self.alive.items() if phase is Phase.SERVING]
        assert all(version >= self.oldest for version in serving)

    def teardown(self) -> None:
        """Everything that runs ends, and whatever was begun is trained, in full batches."""
        if not hasattr(self, "rolling"):
            return
        last_step = self.deadlines.step + self.max_staleness + 1
        for _ in range(200 * (last_step + len(self.alive))):
            if self.deadlines.step > last_step:
                break
            self.go_on_a_little()
        assert self.deadlines.step > last_step, "the trainer waits for ever"
        for _ in range(4 * len(self.alive)):
            self.settle()
        newest = self.rolling.newest_version
        assert {self.rolling.version_of(name) for name in self.alive} == {newest}
        assert set(self.alive.values()) == {Phase.SERVING} and self.rolling.oldest_version == newest

    def go_on_a_little(self, groups: Collection[str] = (), replicas: Collection[str] = ()) -> None:
        """One of each event that brings the run on, but for what these groups and replicas are at."""
        self.settle(groups, replicas)
        if self.may_begin:
            self.begin()
        self.hand_over()

    def settle(self, groups: Collection[str] = (), replicas: Collection[str] = ()) -> None:
        for group in self.running:
            if group.uid not in groups:
                self.end_group(group, True)
        for name in [one for one in self.updating if one not in replicas]:
            self.end_update(name)


TestContinuous = Continuous.TestCase


def test_given_fewer_requests_on_one_of_the_oldest_then_it_is_updated_first_and_a_newer_one_last() -> None:
    """The property takes any order."""
    rolling = RollingUpdate(version=0, drains=False)
    for name in ("full", "nearly empty", "late"):
        rolling.join(name)
        rolling.updated(name)
    inflight = {"full": 9, "nearly empty": 1, "late": 5}
    order = []
    for version in (1, 2):
        rolling.publish(version)
        for _ in range(2):
            (move,) = rolling.moves(inflight)
            order.append((move.replica_id, move.version))
            rolling.updated(move.replica_id)
    assert order == [("nearly empty", 1), ("late", 1), ("full", 2), ("nearly empty", 2)]


@pytest.mark.parametrize("drains", [False, True])
def test_given_replicas_that_stand_still_then_all_that_are_behind_are_updated_at_once(drains) -> None:
    """In the property none is stopped."""
    rolling = RollingUpdate(version=0, drains=drains)
    for name in "abcd":
        rolling.join(name)
        rolling.updated(name)
    rolling.publish(1)
    inflight = {"a": 0, "b": 0, "c": 0, "d": 3}  # its requests are frozen in it, or still to be given back
    assert len(rolling.moves(inflight)) == 1
    moves = {move.replica_id: move.phase for move in rolling.moves(inflight, is_stopped=True)}
    assert moves.keys() == set("bcd")
    assert moves["d"] is (Phase.DRAINING if drains else Phase.UPDATING)
