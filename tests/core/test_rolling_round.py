"""A round that hands batches over, and the pool beside it, under any order of events: each batch has exactly B groups,
none trains twice or too late, and nothing waits for ever while anything runs.
"""

import pickle

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recipe.async_dapo.core.ledger import LedgerError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.pool import PromptPool
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.separate.rolling_round import RollingRound, RollingSpec

from ..support.pool_run import N, fresh_group, generate

WORKERS = 2


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
    return RollingSpec(**(defaults | about))


def waiting(group: PromptGroup) -> WaitingGroup:
    return WaitingGroup(
        prompt_uid=group.uid,
        unfinished=len(group.unfinished),
        has_begun=group.has_started,
        oldest_version=min(group.versions(), default=None),
    )


class Rolling(RuleBasedStateMachine):
    """The trainer, its pool and the open round; engines and workers are left to chance."""

    @initialize(
        batch=st.integers(1, 3),
        max_staleness=st.sampled_from([None, 1, 2, 3]),
        batch_size=st.sampled_from([None, 1, 4]),
        pool_size=st.sampled_from([None, 2, 5]),
    )
    def begin_run(self, batch: int, max_staleness: int | None, batch_size: int | None, pool_size: int | None) -> None:
        self.target, self.max_staleness, self.pool_size = batch, max_staleness, pool_size
        self.over_sampling = OverSampling(target_valid_groups=batch, batch_size=batch_size)
        self.drawn = self.again = 0
        self.step = 1  # whose batch is collected
        self.newest = self.oldest = 0  # of the trainer's weights, and that an engine may sample with
        self.told: list[tuple[int, int]] = []  # not arrived yet
        self.known_oldest = 0
        self.is_training = False
        self.groups: dict[str, PromptGroup] = {}  # in the round
        self.running: list[str] = []
        self.valid: dict[str, set[int]] = {}  # versions of valid groups that wait for their batch
        self.late: set[str] = set()  # from a checkpoint of a looser limit
        self.trained: set[str] = set()
        self.pool = self.new_pool()
        self.round: RollingRound | None = None

    def new_pool(self) -> PromptPool:
        return PromptPool(
            over_sampling=self.over_sampling,
            keeps_tokens=True,
            stop_rule=StopRuleName.FIRST_COMPLETED,
            staleness=StalenessLimit(max_staleness=self.max_staleness),
            new_uid=self.new_uid,
        )

    def new_uid(self) -> str:
        self.again += 1
        return f"again-{self.again}"

    # ---- the trainer ----

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
        self.draw(self.pool.missing_for_round(self.step))
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
        self.draw(self.over_sampling.groups_to_draw(self.round.at_hand))
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
        self.newest, self.is_training = self.step - 1, False
        self.told.append((self.oldest, self.newest))

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
        self.round, self.groups, self.running = None, {}, []
        state = pickle.loads(pickle.dumps(self.pool.state()))
        if new_limit != "same":
            self.max_staleness = new_limit
            self.late |= {carried.uid for carried in state.carried} | {group.uid for group in state.buffered}
        if is_crash:
            self.oldest = self.known_oldest = self.newest
            self.told = []
        self.pool = self.new_pool()
        self.pool.restore(state)

    # ---- engines and workers ----

    @precondition(lambda self: self.round is not None)
    @rule(worker=st.integers(0, WORKERS - 1))
    def take(self, worker: int) -> None:
        uid = self.round.take(worker)
        if uid is not None:
            self.running.append(uid)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def sample(self, data: st.DataObject) -> None:
        group = self.groups[data.draw(st.sampled_from(self.running))]
        self.generate(group.trajectories[data.draw(st.integers(0, N - 1))], data.draw(st.integers(0, 3)))

    def generate(self, trajectory: Trajectory, newer: int) -> None:
        last = max((version for turn in trajectory.turns for version in turn_versions(turn)), default=0)
        generate(trajectory, 1, max(last, min(self.newest, self.oldest + newer)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), verdict=st.sampled_from([Verdict.VALID, Verdict.VALID, Verdict.FILTERED, Verdict.FAILED]))
    def end(self, data: st.DataObject, verdict: Verdict) -> None:
        self.end_group(data.draw(st.sampled_from(self.running)), verdict)

    def end_group(self, uid: str, verdict: Verdict) -> None:
        group = self.groups.pop(uid)
        self.running.remove(uid)
        for trajectory in group.trajectories:
            self.generate(trajectory, 0)
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

    @precondition(lambda self: self.oldest < self.newest)
    @rule()
    def update_engines(self) -> None:
        self.oldest += 1
        self.told.append((self.oldest, self.newest))

    @precondition(lambda self: self.told)
    @rule()
    def hear(self) -> None:
        oldest, newest = self.told.pop(0)
        self.known_oldest = max(self.known_oldest, oldest)
        if self.round is not None:
            self.round.note_versions(oldest=oldest, newest=newest)

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

    def teardown(self) -> None:
        """With time, all that runs ends, and batches come."""
        if not hasattr(self, "pool"):
            return
        last_step = self.step + 4
        for _ in range(400):
            if self.step >= last_step:
                break
            self.go_on_a_little()
        assert self.step >= last_step, "the trainer waits for ever"

    def go_on_a_little(self) -> None:
        if self.is_training:
            self.publish()
        if self.round is None:
            self.open()
        while self.oldest < self.newest:
            self.update_engines()
        while self.told:
            self.hear()
        for worker in range(WORKERS):
            self.take(worker)
        if self.running:
            self.end_group(self.running[0], Verdict.VALID)
        if self.round.has_batch:
            self.hand_over()
        elif self.round.wants_prompts:
            self.refill()


def turn_versions(turn) -> list[int]:
    return [segment.policy_version for segment in turn.segments]


TestRolling = Rolling.TestCase


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


def pool_with(*uids: str) -> PromptPool:
    pool = PromptPool(
        over_sampling=OverSampling(target_valid_groups=1, batch_size=None),
        keeps_tokens=True,
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
    assert pool.retire(9) == (["a"], []) and not pool.carried_uids
