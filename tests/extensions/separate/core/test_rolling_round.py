"""A round that hands batches over, the pool beside it, and engines that get weights one by one, under any order of
events: each batch has exactly B groups, none trains twice or too late, engines work and get the newest weights, and
nothing waits for ever while anything runs.
"""

import pickle
from collections.abc import Collection

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recipe.async_dapo.core.ledger import LedgerError
from recipe.async_dapo.core.mix import ALL, Mix
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.extensions.separate.rolling_round import RollingPool, RollingRound, RollingSpec
from recipe.async_dapo.extensions.separate.rolling_update import OUT_SHARE, Phase, RollingUpdate

from ....support.costly import costly
from ....support.pool_run import N, fresh_group, generate
from ....support.rounds import with_one_part

WORKERS = 2
PLACES = 2  # groups that a replica generates at once


def spec_of(target: int, **about) -> RollingSpec:
    defaults = {
        "round_id": "round",
        "stop_rule": StopRuleName.FIRST_COMPLETED,
        "target_valid_groups": target,
        "carried_valid_groups": len(about.get("carried", ())),
        "drains": False,
        "step": 1,
        "max_staleness": 1,
        "most_begun": 2 * target,
    }
    return RollingSpec(**with_one_part(defaults | about))


def waiting(group: PromptGroup) -> WaitingGroup:
    return WaitingGroup(
        prompt_uid=group.uid,
        unfinished=len(group.unfinished),
        has_begun=group.has_started,
        oldest_version=min(group.versions(), default=None),
    )


class Rolling(RuleBasedStateMachine):
    """The trainer, its pool, the open round, and whose turn for new weights it is; the rest is left to chance."""

    @initialize(
        batch=st.integers(1, 3),
        max_staleness=st.sampled_from([None, 1, 2, 3]),
        batch_size=st.sampled_from([None, 1, 4]),
        pool_size=st.sampled_from([None, 2, 5]),
        replicas=st.integers(1, 18),
        drains=st.booleans(),
        max_lag=st.sampled_from([None, 0, 2]),
    )
    def begin_run(
        self,
        batch: int,
        max_staleness: int | None,
        batch_size: int | None,
        pool_size: int | None,
        replicas: int,
        drains: bool,
        max_lag: int | None,
    ) -> None:
        self.target, self.max_staleness, self.pool_size = batch, max_staleness, pool_size
        self.drains, self.max_lag = drains, max_lag
        self.over_sampling = OverSampling(target_valid_groups=batch, batch_size=batch_size)
        self.drawn = self.again = 0
        self.step = 1  # whose batch is collected
        self.is_training = False
        self.told: list[tuple[int, int]] = []  # oldest and newest version of engines; not arrived yet
        self.known_oldest = self.oldest = 0
        self.told_last = 0, 0
        self.groups: dict[str, PromptGroup] = {}  # in the round
        self.running: dict[str, str | None] = {}  # of these -> the replica; None = it waits for one
        self.valid: dict[str, set[int]] = {}  # versions of valid groups that wait for their batch
        self.late: set[str] = set()  # from a checkpoint of a looser limit
        self.trained: set[str] = set()
        self.pool = self.new_pool()
        self.round: RollingRound | None = None
        self.replicas_ever = 0
        self.start_replicas(replicas)

    def new_pool(self) -> RollingPool:
        return RollingPool(
            mix=Mix(self.over_sampling),
            mixes_versions=True,
            stop_rule=StopRuleName.FIRST_COMPLETED,
            staleness=StalenessLimit(max_staleness=self.max_staleness),
            new_uid=self.new_uid,
        )

    def new_uid(self) -> str:
        self.again += 1
        return f"again-{self.again}"

    # ---- the trainer ----

    @property
    def newest(self) -> int:
        """The version of the trainer's weights that engines may get."""
        return self.step - 1 - self.is_training

    @precondition(lambda self: self.round is None and not self.is_training)
    @rule()
    def open(self) -> None:
        groups = self.top_up(goes_on=False)
        self.valid = {uid: versions for uid, versions in self.valid.items() if uid in self.pool.carried_uids}
        self.round = RollingRound(self.spec(), oldest_version=self.known_oldest)
        self.add(groups)

    def top_up(self, *, goes_on: bool) -> list[PromptGroup]:
        if not goes_on:
            self.pool.retire(self.step)
        self.draw(self.pool.missing_for_round().get(ALL, 0))
        return self.pool.dispatch()

    def draw(self, count: int) -> None:
        names = [f"drawn-{self.drawn + k}" for k in range(count)]
        self.drawn += count
        self.pool.add_drawn([fresh_group(name, step=self.step) for name in names])

    def add(self, groups: list[PromptGroup]) -> None:
        assert self.round is not None
        self.groups |= {group.uid: group for group in groups}
        self.round.add_groups([waiting(group) for group in groups])

    def spec(self) -> RollingSpec:
        return spec_of(
            self.target,
            step=self.step,
            max_staleness=self.max_staleness,
            carried=self.pool.carried_versions,
            pool_size=self.pool_size,
            most_begun=self.over_sampling.valid_to_hold,
        )

    @precondition(lambda self: self.round is not None and not self.is_training and self.round.wants_prompts)
    @rule()
    def refill(self) -> None:
        self.draw(self.over_sampling.groups_to_draw(self.round.available[ALL]))
        self.add(self.pool.dispatch())

    @precondition(lambda self: self.round is not None and not self.is_training and self.round.has_batch)
    @rule()
    def hand_over(self) -> None:
        summary = self.round.hand_over()
        summary = self.pool.hand_over(summary)
        assert sorted(summary.trained_uids) == sorted(summary.handed_over)
        assert len(set(summary.handed_over)) == self.target
        assert not self.trained & set(summary.handed_over)
        self.trained |= set(summary.handed_over)
        for uid in summary.handed_over:
            versions = self.valid.pop(uid)
            assert max(versions) < self.step
            if self.max_staleness is not None and uid not in self.late:
                assert self.step - 1 - min(versions) <= self.max_staleness, "a token is too stale"
        self.is_training = True
        self.step += 1
        self.add(self.top_up(goes_on=True))
        self.round.resize(self.spec())

    @precondition(lambda self: self.is_training)
    @rule()
    def publish(self) -> None:
        self.is_training = False
        self.rolling.publish(self.newest)
        self.turn()

    @precondition(lambda self: self.round is not None and not self.is_training)
    @rule(data=st.data(), new_limit=st.sampled_from(["same", None, 1, 2]), is_crash=st.booleans())
    def checkpoint(self, data: st.DataObject, new_limit: int | str | None, is_crash: bool) -> None:
        """Stop the round, and go on with what the checkpoint holds, maybe under another limit."""
        self.round.stop()
        assert self.round.is_stopped and self.round.take(0) is None
        assert not self.round.has_batch
        summary = self.round.close()
        unfinished = [self.groups[uid] for uid in self.running if data.draw(st.integers(0, 9))]  # a worker may lose one
        self.pool.take_back(summary, unfinished)
        self.round, self.groups, self.running = None, {}, {}
        state = pickle.loads(pickle.dumps(self.pool.state()))
        if new_limit != "same":
            self.max_staleness = new_limit
            self.late |= {carried.uid for carried in state.carried} | {group.uid for group in state.buffered}
        if is_crash:
            self.told, self.known_oldest = [], self.newest
            self.start_replicas(len(self.alive))
        self.pool = self.new_pool()
        self.pool.restore(state)
        self.turn()

    # ---- replicas of the engine ----

    def start_replicas(self, count: int) -> None:
        """All anew, with the newest weights."""
        self.rolling = RollingUpdate(version=self.newest, drains=self.drains, max_lag=self.max_lag)
        self.alive: dict[str, Phase] = {}
        self.updating: dict[str, int] = {}  # the version that each is to get
        self.updated_in_a_stop: set[str] = set()
        self.have_served: set[str] = set()
        for _ in range(count):
            self.join()
        for name in list(self.updating):
            self.end_update(name)

    @rule()
    def join(self) -> None:
        self.replicas_ever += 1
        name = f"replica-{self.replicas_ever}"
        self.rolling.join(name)
        self.alive[name], self.updating[name] = Phase.UPDATING, self.rolling.newest_version
        assert self.rolling.phase_of(name) is Phase.UPDATING

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
        self.running = {uid: None if replica == name else replica for uid, replica in self.running.items()}
        self.turn()

    def end_update(self, name: str) -> None:
        phase = self.rolling.updated(name)
        version = self.updating.pop(name)
        assert phase is not None and self.rolling.version_of(name) == version
        self.updated_in_a_stop.discard(name)
        self.alive[name] = phase
        if phase is Phase.SERVING:
            self.have_served.add(name)
        else:
            self.updating[name] = self.rolling.newest_version
        self.turn()

    @property
    def inflight(self) -> dict[str, int]:
        return {name: list(self.running.values()).count(name) for name in self.alive}

    def turn(self) -> None:
        """Make all moves, place what waits, and tell the coordinator of versions."""
        inflight, is_stopped = self.inflight, self.round is None
        for name, phase in self.rolling.moves(inflight, is_stopped=is_stopped).items():
            assert self.alive[name] is not Phase.UPDATING, "told twice"
            if phase is Phase.UPDATING:
                assert not (self.drains and inflight[name]), "a trajectory would change its version"
                self.updating[name] = self.rolling.newest_version
                self.updated_in_a_stop |= {name} if is_stopped else set()
            self.alive[name] = phase
        assert not self.rolling.moves(inflight, is_stopped=is_stopped), "told twice"
        self.place()
        versions = self.rolling.oldest_version, self.rolling.newest_version
        if versions != self.told_last:
            self.told.append(versions)
            self.told_last = versions

    def place(self) -> None:
        inflight = self.inflight
        for uid, replica in self.running.items():
            free = [name for name, phase in self.alive.items() if phase is Phase.SERVING and inflight[name] < PLACES]
            if replica is None and free:
                self.running[uid] = free[0]
                inflight[free[0]] += 1

    @precondition(lambda self: self.told)
    @rule()
    def hear(self) -> None:
        oldest, newest = self.told.pop(0)
        self.known_oldest = max(self.known_oldest, oldest)
        if self.round is not None:
            self.round.note_versions(oldest=oldest, newest=newest)

    # ---- workers ----

    @precondition(lambda self: self.round is not None)
    @rule(worker=st.integers(0, WORKERS - 1))
    def take(self, worker: int) -> None:
        uid = self.round.take(worker)
        if uid is not None:
            self.running[uid] = None
            self.place()

    @property
    def generating(self) -> list[str]:
        """Groups whose replica generates."""
        return [uid for uid, name in self.running.items() if name and self.alive[name] is not Phase.UPDATING]

    @precondition(lambda self: self.generating)
    @rule(data=st.data())
    def sample(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self.generating))
        trajectory = self.groups[uid].trajectories[data.draw(st.integers(0, N - 1))]
        generate(trajectory, 1, self.rolling.version_of(self.running[uid]))

    @precondition(lambda self: self.generating)
    @rule(data=st.data(), verdict=st.sampled_from([Verdict.VALID, Verdict.VALID, Verdict.FILTERED, Verdict.FAILED]))
    def end(self, data: st.DataObject, verdict: Verdict) -> None:
        self.end_group(data.draw(st.sampled_from(self.generating)), verdict)

    def end_group(self, uid: str, verdict: Verdict) -> None:
        group, version = self.groups.pop(uid), self.rolling.version_of(self.running.pop(uid))
        for trajectory in group.trajectories:
            generate(trajectory, 1, version)
        versions = group.versions()
        outcome = GroupOutcome(
            prompt_uid=uid,
            verdict=verdict,
            reason="error" if verdict is Verdict.FAILED else "",
            oldest_version=min(versions),
            newest_version=max(versions),
        )
        self.round.report(outcome)
        self.round.report(outcome)  # a report may come twice
        if verdict is Verdict.VALID:
            self.valid[uid] = versions
        self.turn()

    @rule(data=st.data(), times=st.integers(1, 20))
    def go_on_but_for_one_group_and_one_replica(self, data: st.DataObject, times: int) -> None:
        """As long as others can."""
        group = data.draw(st.sampled_from([None, *self.running]))
        replica = data.draw(st.sampled_from([None, *self.updating]))
        for _ in range(times):
            self.go_on_a_little([group], [replica])

    # ---- what must hold ----

    @invariant()
    def every_prompt_is_in_one_term(self) -> None:
        self.pool.check_ledger()

    @invariant()
    def no_more_have_begun_than_are_to(self) -> None:
        if self.round is not None and not self.late:
            begun = self.round.num_running + len(self.valid) + self.target * self.is_training
            resumed = sum(group.has_started for group in self.groups.values())
            assert begun <= max(self.over_sampling.valid_to_hold, len(self.valid) + resumed + self.target)

    @invariant()
    def phases_are_known(self) -> None:
        assert self.alive == {name: self.rolling.phase_of(name) for name in self.alive}

    @invariant()
    def no_replica_is_idle_while_work_waits(self) -> None:
        inflight = self.inflight
        for name, phase in self.alive.items():
            assert phase is not Phase.DRAINING or inflight[name], "it could be updated"
        if None in self.running.values():
            assert all(inflight[name] == PLACES for name, phase in self.alive.items() if phase is Phase.SERVING)

    @invariant()
    def only_a_few_are_out(self) -> None:
        """Of those that have served, if none has died, and generation goes on; those too far behind come on top."""
        served, newest = self.have_served & self.alive.keys(), self.rolling.newest_version
        out = [name for name in served if self.alive[name] is not Phase.SERVING]
        late = [
            name for name in out if self.max_lag is not None and newest - self.rolling.version_of(name) > self.max_lag
        ]
        if not late and served == self.have_served:
            assert len(set(out) - self.updated_in_a_stop) <= max(1, int(OUT_SHARE * len(served)))

    @invariant()
    def what_serves_is_no_older_than_what_groups_begin_under(self) -> None:
        assert self.known_oldest <= self.rolling.oldest_version
        assert self.oldest <= self.rolling.oldest_version <= self.rolling.newest_version == self.newest
        self.oldest = self.rolling.oldest_version
        serving = [self.rolling.version_of(name) for name, phase in self.alive.items() if phase is Phase.SERVING]
        assert all(version >= self.oldest for version in serving)

    def teardown(self) -> None:
        """With time, all that runs ends, batches come, and every replica has the newest weights."""
        if not hasattr(self, "rolling"):
            return
        last_step = self.step + 4
        for _ in range(400):
            if self.step >= last_step:
                break
            self.go_on_a_little()
        assert self.step >= last_step, "the trainer waits for ever"
        for _ in range(4 * len(self.alive)):
            for uid in self.generating:
                self.end_group(uid, Verdict.VALID)
            for name in list(self.updating):
                self.end_update(name)
        newest = self.rolling.newest_version
        assert {self.rolling.version_of(name) for name in self.alive} == {newest} == {self.rolling.oldest_version}
        assert set(self.alive.values()) == {Phase.SERVING}

    def go_on_a_little(self, groups: Collection[str | None] = (), replicas: Collection[str | None] = ()) -> None:
        """One of each event that brings the run on, but for what these groups and replicas are at."""
        if self.is_training:
            self.publish()
        if self.round is None:
            self.open()
        for name in [one for one in self.updating if one not in replicas]:
            self.end_update(name)
        while self.told:
            self.hear()
        for worker in range(WORKERS):
            self.take(worker)
        for uid in [one for one in self.generating if one not in groups][:1]:
            self.end_group(uid, Verdict.VALID)
        if self.round.has_batch:
            self.hand_over()
        elif self.round.wants_prompts:
            self.refill()


TestRolling = Rolling.TestCase
TestRolling.settings = costly(TestRolling.settings)


def begun(round_: RollingRound) -> list[str]:
    """Start all that may."""
    result = []
    while (uid := round_.take(0)) is not None:
        result.append(uid)
    return result


def fresh(*uids: str) -> list[WaitingGroup]:
    return [WaitingGroup(prompt_uid=uid, unfinished=1) for uid in uids]


def end(round_: RollingRound, *uids: str) -> None:
    for uid in uids:
        round_.report(GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID))


def test_given_more_late_groups_than_a_batch_takes_then_they_are_handed_over_one_batch_after_the_other() -> None:
    """A resumed group's deadline is met by chance in the property: its groups are few."""
    carried = tuple((f"old-{k}", 0) for k in range(5))
    round_ = RollingRound(spec_of(2, step=9, carried=carried), oldest_version=8)
    round_.add_groups(
        [WaitingGroup(prompt_uid="long", unfinished=1, has_begun=True, oldest_version=1), *fresh("a", "b")]
    )
    assert begun(round_) == ["long"]
    assert [round_.hand_over().handed_over for _ in range(2)] == [("old-0", "old-1"), ("old-2", "old-3")]
    round_.note_versions(oldest=10, newest=10)
    assert begun(round_)[:1] == ["a"]


def test_given_a_group_that_was_interrupted_before_its_first_token_then_it_finds_room_as_a_fresh_one_does() -> None:
    """In the property a group that has begun has tokens."""
    round_ = RollingRound(spec_of(2, step=3, most_begun=100), oldest_version=0)
    round_.add_groups([WaitingGroup(prompt_uid="a", unfinished=1, has_begun=True)])
    assert begun(round_) == []


def pool_with(*uids: str) -> RollingPool:
    pool = RollingPool(
        mix=Mix(OverSampling(target_valid_groups=1, batch_size=None)),
        mixes_versions=True,
        stop_rule=StopRuleName.FIRST_COMPLETED,
        staleness=StalenessLimit(max_staleness=1),
        new_uid=lambda: "again",
    )
    pool.add_drawn([fresh_group(uid) for uid in uids])
    return pool


def valid(uid: str, version: int = 0) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID, oldest_version=version, newest_version=version)


def test_given_a_round_that_believes_in_other_groups_when_it_hands_over_then_the_ledger_says_so() -> None:
    pool = pool_with("a", "b")
    pool.dispatch()
    round_ = RollingRound(spec_of(1), oldest_version=0)
    round_.add_groups(fresh("a"))
    begun(round_)
    round_.report(valid("a"))
    with pytest.raises(LedgerError, match="0 groups are in the round, 1 were given to it"):
        pool.hand_over(round_.hand_over())


def test_given_a_carried_group_that_has_grown_too_stale_then_it_is_retired() -> None:
    pool = pool_with("a")
    pool.dispatch()
    round_ = RollingRound(spec_of(2), oldest_version=0)
    round_.add_groups(fresh("a"))
    begun(round_)
    round_.report(valid("a"))
    round_.stop()
    pool.take_back(round_.close(), [])
    assert pool.carried_uids == ("a",)
    assert pool.retire(9) == ["a"] and not pool.carried_uids


def test_given_fewer_requests_on_one_of_the_oldest_then_it_is_updated_first_and_a_newer_one_last() -> None:
    """The machine takes any order."""
    rolling = RollingUpdate(version=0, drains=False)
    for name in ("full", "nearly empty", "late"):
        rolling.join(name)
        rolling.updated(name)
    inflight = {"full": 9, "nearly empty": 1, "late": 5}
    order = []
    for version in (1, 2):
        rolling.publish(version)
        for _ in range(2):
            (name,) = rolling.moves(inflight)
            rolling.updated(name)
            order.append((name, rolling.version_of(name)))
    assert order == [("nearly empty", 1), ("late", 1), ("full", 2), ("nearly empty", 2)]


@pytest.mark.parametrize("drains", [False, True])
def test_given_replicas_that_stand_still_then_all_that_are_behind_are_updated_at_once(drains) -> None:
    """In the machine nothing is in flight then."""
    rolling = RollingUpdate(version=0, drains=drains)
    for name in "abcd":
        rolling.join(name)
        rolling.updated(name)
    rolling.publish(1)
    inflight = {"a": 0, "b": 0, "c": 0, "d": 3}  # its requests are still to be given back
    assert len(rolling.moves(inflight)) == 1
    moves = rolling.moves(inflight, is_stopped=True)
    assert moves.keys() == set("bcd")
    assert moves["d"] is (Phase.DRAINING if drains else Phase.UPDATING)
