"""A round under any interleaving: every group is in exactly one place, and the stop never reverts."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recipe.async_dapo.core.mix import ALL, Quota
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import GroupEvent, Round, RoundSpec, RoundSummary
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.core.stop_rules import StopRuleName, ending_of

from ..support.costly import costly
from ..support.rounds import spec

VERDICTS = st.sampled_from([*Verdict, *[Verdict.VALID] * 5])


def make_round(
    name: StopRuleName | None,
    *,
    target: int = 2,
    carried: int = 0,
    must_finish: tuple[str, ...] = (),
    pool_size: int | None = None,
    most_unfinished: int | None = None,
    draws_again: bool = False,
) -> Round:
    return Round(
        RoundSpec(
            round_id="round",
            stop_rule=name,
            parts={ALL: Quota(target_valid_groups=target, carried_valid_groups=carried)},
            drains=name is None or ending_of(name).drains,
            must_finish=frozenset(must_finish),
            pool_size=pool_size,
            most_unfinished=most_unfinished,
            draws_again=draws_again,
        )
    )


def waiting(*uids: str, unfinished: int = 1, **about) -> list[WaitingGroup]:
    return [WaitingGroup(prompt_uid=uid, unfinished=unfinished, **about) for uid in uids]


def outcome(uid: str, verdict: Verdict = Verdict.VALID) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=verdict)


class RoundMachine(RuleBasedStateMachine):
    @initialize(
        name=st.sampled_from([*StopRuleName, None]),
        enough=st.integers(1, 3),
        carried=st.integers(0, 3),
        num_must_finish=st.integers(0, 2),
        pool_size=st.none() | st.integers(1, 5),
        most=st.none() | st.integers(5, 9),
    )
    def open(self, name, enough, carried, num_must_finish, pool_size, most) -> None:
        self.name, self.target, self.carried, self.pool_size, self.most = name, enough, carried, pool_size, most
        must_finish = tuple(f"group-{k}" for k in range(num_must_finish if name else 0))
        self.round = make_round(
            name,
            target=enough,
            carried=carried,
            must_finish=must_finish,
            pool_size=pool_size,
            most_unfinished=most,
        )
        self.must_finish = set(must_finish)
        self.waiting: list[str] = []
        self.sizes: dict[str, int] = {}
        self.certain: set[str] = set()
        self.running: dict[str, int] = {}
        self.idle: Counter[str] = Counter()
        self.ended: list[GroupOutcome] = []
        self.start_order: list[str] = []
        self.num_added = 0
        self.was_halted = self.was_stopped = False
        if must_finish or carried < enough:
            self.add(num_must_finish + 3, 1)

    @rule(count=st.integers(1, 4), size=st.integers(0, 3))
    def add(self, count: int, size: int) -> None:
        sizes = {f"group-{self.num_added + k}": size for k in range(count)}
        self.num_added += count
        self.waiting += sizes
        self.sizes |= sizes
        self.round.add_groups(waiting(*sizes, unfinished=size))

    @rule(workers=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def take(self, workers: list[int]) -> None:
        for worker in workers:
            self.take_one(worker)

    def take_one(self, worker: int) -> None:
        halted, free = self.round.is_halted, self.has_capacity
        uid = self.round.take(worker)
        assert (uid is not None) == (not halted and free and bool(self.waiting))
        if uid is not None:
            self.waiting.remove(uid)
            self.running[uid] = self.sizes[uid]
            self.start_order.append(uid)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), verdict=VERDICTS)
    def report(self, data: st.DataObject, verdict: Verdict) -> None:
        uid = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[uid]
        self.idle.pop(uid, None)
        self.certain.discard(uid)
        self.must_finish.discard(uid)
        self.ended.append(outcome(uid, verdict))
        self.round.report(self.ended[-1])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_trajectory(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.running)))
        if self.running[uid] and self.running[uid] == self.idle[uid]:
            return  # all of them wait
        self.running[uid] = max(0, self.running[uid] - 1)
        self.round.note(uid, GroupEvent.GENERATED)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def mark_certain(self, data: st.DataObject) -> None:
        """Changes neither the stop nor what may start."""
        uid = data.draw(st.sampled_from(sorted(self.running)))
        self.certain.add(uid)
        self.round.note(uid, GroupEvent.CERTAIN)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), begins=st.booleans())
    def wait(self, data: st.DataObject, begins: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.running)))
        if self.idle[uid] < self.running[uid] if begins else self.idle[uid] > 0:
            change = 1 if begins else -1
            self.idle[uid] += change
            self.round.note(uid, GroupEvent.IDLE if begins else GroupEvent.GOES_ON)

    @rule(data=st.data(), verdict=VERDICTS)
    def report_what_is_not_running(self, data: st.DataObject, verdict: Verdict) -> None:
        strays = [*self.waiting, *(o.prompt_uid for o in self.ended), "group of another round"]
        uid = data.draw(st.sampled_from(strays))
        self.round.report(outcome(uid, verdict))
        for event in GroupEvent:
            self.round.note(uid, event)

    @property
    def inflight(self) -> int:
        return sum(self.running.values())

    @property
    def has_capacity(self) -> bool:
        return (self.pool_size is None or self.inflight - self.idle.total() < self.pool_size) and (
            self.most is None or self.inflight < self.most
        )

    @property
    def num_valid(self) -> int:
        return self.carried + sum(o.verdict is Verdict.VALID for o in self.ended)

    @invariant()
    def counts_are_right(self) -> None:
        assert self.round.num_waiting == len(self.waiting)
        assert self.round.num_running == len(self.running)
        available = self.round.available[ALL]
        assert available.certain == self.num_valid + len(self.certain)
        assert available.expected_valid(1.0) == self.num_valid + len(self.waiting) + len(self.running)
        assert self.round.wants_prompts == (
            self.name is not None and not self.round.is_halted and available.expected_valid(1.0) < self.target
        )
        may_start = self.has_capacity and bool(self.waiting)
        assert self.round.may_start == (may_start and not self.round.is_halted)

    @invariant()
    def halt_and_stop_never_revert(self) -> None:
        halted, stopped = self.round.is_halted, self.round.is_stopped
        assert halted or not self.was_halted
        assert stopped or not self.was_stopped
        assert halted or not stopped
        self.was_halted, self.was_stopped = halted, stopped

    @invariant()
    def it_stops_when_it_has_enough_and_not_before(self) -> None:
        if self.name is None:
            if self.start_order and not self.running and not self.waiting:
                assert self.round.is_stopped
            return
        if self.round.is_halted:
            assert self.num_valid >= self.target and not self.must_finish
            assert self.round.is_stopped != (self.name is StopRuleName.DRAIN and bool(self.running))
        elif self.name is not StopRuleName.FIFO:
            assert self.num_valid < self.target or self.must_finish
        if not self.running and self.num_valid >= self.target and not self.must_finish:
            assert self.round.is_stopped

    def teardown(self) -> None:
        if hasattr(self, "round"):
            assert_every_group_is_in_one_place(self.round.close(), self)


def assert_every_group_is_in_one_place(summary: RoundSummary, machine: RoundMachine) -> None:
    assert list(summary.outcomes) == machine.ended
    assert list(summary.never_started) == machine.waiting
    assert list(summary.taken_unreported) == list(machine.running)
    assert list(summary.start_order) == machine.start_order
    everywhere = [*summary.never_started, *summary.taken_unreported, *(o.prompt_uid for o in summary.outcomes)]
    assert sorted(everywhere) == sorted(f"group-{k}" for k in range(machine.num_added))


TestRoundMachine = RoundMachine.TestCase
TestRoundMachine.settings = costly(TestRoundMachine.settings)


def test_given_groups_that_may_fill_every_step_that_can_train_them_then_fresh_ones_wait_and_begun_ones_do_not() -> None:
    opened = Round(spec(target_valid_groups=1, must_finish=frozenset({"old"}), most_trainable=3))
    opened.add_groups([*waiting("old", "older", has_begun=True), *waiting("a", "b")])
    assert [opened.take(0), opened.take(0), opened.take(0)] == ["old", "older", "a"]
    assert not opened.may_start and not opened.may_start_on(0) and opened.take(0) is None
    opened.report(outcome("older", Verdict.FILTERED))
    assert opened.take(0) == "b"


@pytest.mark.parametrize("verdict", [Verdict.VALID, Verdict.FILTERED])
@pytest.mark.parametrize("draws_again", [True, False])
def test_given_groups_complete_behind_those_that_fifo_waits_for_then_they_start_again_where_interrupted_ones_do(
    draws_again: bool, verdict: Verdict
) -> None:
    opened = make_round(StopRuleName.FIFO, target=1, draws_again=draws_again)
    opened.add_groups(waiting("first", "second", "behind", "failed", "running"))
    for _ in range(5):
        opened.take(0)
    for uid, end in (
        ("behind", verdict), ("failed", Verdict.FAILED), ("first", Verdict.FILTERED), ("second", Verdict.VALID)
    ):  # fmt: skip
        opened.report(outcome(uid, end))
    assert opened.is_stopped
    ended = {one.prompt_uid: one.verdict for one in opened.close().outcomes}
    assert ended == {
        "first": Verdict.FILTERED,
        "second": Verdict.VALID,
        "behind": Verdict.REDRAWN if draws_again else verdict,
        "failed": Verdict.FAILED,
    }


ENDINGS = list(Verdict)


@dataclass
class History:
    """What happened to the groups of a round, in order."""

    started: list[str] = field(default_factory=list)
    ended: dict[str, Verdict] = field(default_factory=dict)

    def has_enough(self, name: StopRuleName, missing: int) -> bool:
        """By definition, over all prefixes."""
        if name is not StopRuleName.FIFO:
            return list(self.ended.values()).count(Verdict.VALID) >= missing
        return any(
            all(uid in self.ended for uid in self.started[:length])
            and sum(self.ended[uid] is Verdict.VALID for uid in self.started[:length]) >= missing
            for length in range(len(self.started) + 1)
        )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Verdict | None]]:
    """Starts (verdict None) and ends of up to 8 groups in any order in which a group starts before it ends."""
    verdicts = draw(st.lists(st.sampled_from([*ENDINGS, None]), max_size=8))  # None: never ends
    events: list[tuple[str, Verdict | None]] = []
    for k, verdict in enumerate(verdicts):
        uid = f"group-{k}"
        started_at = draw(st.integers(0, len(events)))
        events.insert(started_at, (uid, None))
        if verdict is not None:
            events.insert(draw(st.integers(started_at + 1, len(events))), (uid, verdict))
    return events


@given(events=histories(), name=st.sampled_from(StopRuleName), target=st.integers(1, 5), carried=st.integers(0, 6))
def test_rule_is_met_exactly_when_its_definition_is(
    events: list[tuple[str, Verdict | None]], name: StopRuleName, target: int, carried: int
) -> None:
    opened = spec(stop_rule=name, target_valid_groups=target, carried_valid_groups=carried)
    rule = opened.make_rule(opened.parts[ALL])
    assert rule is not None
    history = History()
    was_met = rule.is_met
    assert was_met == (carried >= target)
    for uid, verdict in events:
        if verdict is None:
            history.started.append(uid)
            rule.on_start(uid)
        else:
            history.ended[uid] = verdict
            rule.on_end(uid, verdict)
        assert rule.is_met == history.has_enough(name, target - carried)
        assert rule.is_met or not was_met, "the rule reverted"
        was_met = rule.is_met
