"""The pool and its ledger over many rounds: nothing vanishes, exactly B groups train, none twice, order is kept."""

import pickle
from array import array
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.ledger import Ledger, LedgerError
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.pool import Dispatch, PromptPool, Settlement
from recipe.async_dapo.core.round import Round, RoundSummary
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo.core.stop_rules import StopRuleName, make_stop_rule
from recipe.async_dapo.core.trajectory import GroupOutcome, PromptGroup, Segment, Trajectory, Turn, Verdict

N = 2


def generate(trajectory: Trajectory, tokens: int, version: int) -> None:
    """Add tokens of one policy version to the unfinished turn."""
    if not trajectory.turns:
        trajectory.turns.append(Turn(prompt_digest=b"prompt", prompt_len_tok=1))
    ids = array("i", range(trajectory.generated_tok, trajectory.generated_tok + tokens))
    probs = array("f", [-float(version)] * tokens)
    trajectory.turns[-1].segments.append(Segment(policy_version=version, token_ids=ids, rollout_log_probs=probs))


@dataclass
class Run:
    """A trainer that does nothing but draw, open rounds and settle them; everything else is left to chance."""

    random: Random
    target: int
    over_sampling: int
    strategy_keeps: bool
    stop_rule: StopRuleName
    max_staleness: int | None
    step: int = 0
    drawn: int = 0
    again: int = 0
    trained: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)  # trained, filtered, failed or retired: never to be seen again
    expected_start: list[str] = field(default_factory=list)  # of what waits
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)  # uid -> (age, tokens)

    def __post_init__(self) -> None:
        self.pool = self.new_pool()

    def new_pool(self) -> PromptPool:
        return PromptPool(
            over_sampling=OverSampling(target_valid_groups=self.target, batch_size=self.over_sampling),
            keeps_tokens=self.strategy_keeps,
            stop_rule=self.stop_rule,
            staleness=StalenessLimit(max_staleness=self.max_staleness),
            new_uid=self.new_uid,
        )

    def new_uid(self) -> str:
        self.again += 1
        return f"again-{self.again}"

    def draw(self, count: int) -> None:
        groups = [
            PromptGroup(
                uid=f"drawn-{self.drawn + k}",
                prompt={"raw_prompt": k},
                drawn_at_step=self.step,
                trajectories=[Trajectory(session_id=i) for i in range(N)],
            )
            for k in range(count)
        ]
        self.drawn += count
        self.pool.add_drawn(groups)

    def one_step(self) -> Settlement:
        self.step += 1
        drawn_before, again_before = self.drawn, self.again
        dispatch = self.pool.dispatch(self.step)
        if missing := self.pool.missing_for_round():
            self.draw(missing)
        dispatch = dispatch.extended(self.pool.dispatch(self.step))
        self.check_dispatch(dispatch, drawn_before, again_before)
        self.ended.update(dispatch.retired_uids)
        carried = self.pool.carried_uids
        opened = Round(
            f"step-{self.step}",
            rule=make_stop_rule(self.stop_rule, target_valid_groups=self.target, carried_valid_groups=len(carried)),
            target_valid_groups=self.target,
            carried_valid_groups=len(carried),
            num_workers=self.random.randint(1, 3),
            drains=self.stop_rule is StopRuleName.DRAIN,
            must_finish=dispatch.must_finish,
        )
        summary, unfinished = self.roll_out(opened, dispatch)
        settlement = self.pool.settle(summary, unfinished)
        self.check_settlement(settlement, summary, unfinished)
        return settlement

    def roll_out(self, opened: Round, dispatch: Dispatch) -> tuple[RoundSummary, list[PromptGroup]]:
        groups = {group.uid: group for group in dispatch.groups}
        opened.add_groups({uid: len(group.unfinished) for uid, group in groups.items()})
        running: dict[str, PromptGroup] = {}
        set_aside: list[PromptGroup] = []
        while opened.stop_reason is None:
            if opened.wants_prompts:
                self.draw(self.over_sampling)
                more = self.pool.dispatch(self.step)
                groups |= {group.uid: group for group in more.groups}
                opened.add_groups({group.uid: N for group in more.groups})
            if (uid := opened.take(0)) is not None:
                running[uid] = pickle.loads(pickle.dumps(groups[uid]))
                assert running[uid].unfinished, "a finished group was started again"
            if running and self.random.random() < 0.5:
                self.end(opened, running, set_aside)
        for _ in range(self.random.randint(0, len(running))):
            self.end(opened, running, set_aside)  # reports that were under way when the round stopped
        given_back = [group for group in running.values() if self.random.random() < 0.8]  # others are lost
        for group in given_back:
            for trajectory in group.unfinished:
                generate(trajectory, self.random.randint(0, 3), self.step - 1)
        self.random.shuffle(unfinished := given_back + set_aside)
        return opened.close(), unfinished

    def end(self, opened: Round, running: dict[str, PromptGroup], set_aside: list[PromptGroup]) -> None:
        """A running group ends, with a verdict by chance."""
        uid = self.random.choice(list(running))
        group = running.pop(uid)
        verdict = self.random.choice([Verdict.VALID, Verdict.VALID, Verdict.FILTERED, Verdict.FAILED, Verdict.SET_ASIDE])
        ending = group.unfinished[:1] if verdict is Verdict.SET_ASIDE else group.unfinished
        for trajectory in ending:
            generate(trajectory, self.random.randint(1, 3), self.step - 1)
        if verdict is Verdict.SET_ASIDE:
            set_aside.append(group)
        versions = group.versions()
        opened.report(
            GroupOutcome(
                prompt_uid=uid,
                verdict=verdict,
                reason="reward_error" if verdict is Verdict.FAILED else "",
                oldest_version=min(versions),
                newest_version=max(versions),
            )
        )

    def check_dispatch(self, dispatch: Dispatch, drawn_before: int, again_before: int) -> None:
        uids = [group.uid for group in dispatch.groups]
        assert len(set(uids)) == len(uids) and not self.ended & set(uids), "a group that had ended was started"
        resumed = dispatch.groups[: dispatch.resumed]
        assert [group.age for group in resumed] == sorted((group.age for group in resumed), reverse=True)
        for group in resumed:
            assert (group.age, group.generated_tok) == self.kept.pop(group.uid)
        assert set(self.kept) <= set(dispatch.retired_uids), "kept tokens vanished"
        assert all(group.generated_tok == 0 and group.age == 0 for group in dispatch.groups[dispatch.resumed :])
        replaced = [f"again-{k}" for k in range(again_before + 1, self.again + 1)]
        fresh = [f"drawn-{k}" for k in range(drawn_before, self.drawn)]
        assert uids[dispatch.resumed :] == [*replaced, *self.expected_start, *fresh], "not first come, first served"
        limit = StalenessLimit(max_staleness=self.max_staleness)
        for group in resumed:
            oldest = min(group.versions(), default=None)
            assert (group.uid in dispatch.must_finish) == limit.must_finish(oldest, self.step)
            assert not limit.is_too_stale(max(group.versions(), default=None), self.step)

    def check_settlement(
        self, settlement: Settlement, summary: RoundSummary, unfinished: list[PromptGroup]
    ) -> None:
        assert len(settlement.trained_uids) == self.target
        assert not self.ended & set(settlement.trained_uids), "a group was trained twice"
        gone = {o.prompt_uid for o in summary.outcomes if o.verdict in (Verdict.FILTERED, Verdict.FAILED)}
        self.ended |= gone | set(settlement.trained_uids)
        self.trained += settlement.trained_uids
        ledger = self.pool.check_ledger()
        assert ledger["drawn"] == self.drawn + self.again
        assert ledger["trained"] == self.target * self.step
        given_back = {group.uid: group for group in unfinished}
        self.kept = {
            uid: (group.age, group.generated_tok)
            for uid, group in given_back.items()
            if self.strategy_keeps and group.has_started
        }
        requeued = [uid for uid in summary.start_order if uid in given_back and uid not in self.kept]
        buffered_again = {group.uid for group in self.pool.buffered} - self.kept.keys()  # resumed, then not started
        self.kept |= {g.uid: (g.age, g.generated_tok) for g in self.pool.buffered if g.uid in buffered_again}
        lost = set(summary.taken_unreported) - given_back.keys()
        assert settlement.lost_reports == len(lost)
        assert settlement.requeued == len(requeued) + len(lost)
        never = [uid for uid in summary.never_started if uid not in buffered_again]
        first = [group.uid for group in self.pool.state_dict()["waiting"]][: len(lost)]
        assert set(first) == lost
        self.expected_start = [*first, *requeued, *never]

    def restart_from_checkpoint(self) -> None:
        state = pickle.loads(pickle.dumps(self.pool.state_dict(), protocol=5))
        self.pool = self.new_pool()
        self.pool.load_state_dict(state)


@given(
    random=st.randoms(use_true_random=False),
    target=st.integers(1, 3),
    over_sampling=st.integers(1, 6),
    strategy_keeps=st.booleans(),
    stop_rule=st.sampled_from(StopRuleName),
    max_staleness=st.sampled_from([None, 0, 1, 2]),
)
def test_given_any_rounds_when_settled_then_the_ledger_closes_and_exactly_the_target_is_trained_once(
    random, target, over_sampling, strategy_keeps, stop_rule, max_staleness
) -> None:
    run = Run(random, target, over_sampling, strategy_keeps, stop_rule, max_staleness)
    for _ in range(5):
        run.one_step()
        if random.random() < 0.4:
            run.restart_from_checkpoint()
    assert len(set(run.trained)) == 5 * target


def summary_of(run: Run, outcomes: list[GroupOutcome], started: list[str], waiting: list[str]) -> RoundSummary:
    ended = {o.prompt_uid for o in outcomes}
    return RoundSummary(
        round_id="round",
        stop_reason=None,
        outcomes=tuple(outcomes),
        start_order=tuple(started),
        never_started=tuple(waiting),
        taken_unreported=tuple(uid for uid in started if uid not in ended),
    )


def valid(uid: str) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID, oldest_version=0, newest_version=0)


def opened_run(stop_rule: StopRuleName, **options: bool) -> tuple[Run, list[PromptGroup]]:
    run = Run(Random(0), 2, 5, options.get("keeps", False), stop_rule, None, step=1)
    run.draw(5)
    return run, run.pool.dispatch(1).groups


@pytest.mark.parametrize(
    ("stop_rule", "trained"),
    [(StopRuleName.FIRST_COMPLETED, ("drawn-2", "drawn-0")), (StopRuleName.FIFO, ("drawn-0", "drawn-2"))],
)
def test_given_more_valid_groups_than_the_target_then_the_first_by_the_stop_rule_are_trained_and_the_rest_next(
    stop_rule: StopRuleName, trained: tuple[str, ...]
) -> None:
    run, _ = opened_run(stop_rule)
    uids = [f"drawn-{k}" for k in range(5)]
    outcomes = [valid("drawn-2"), valid("drawn-0"), valid("drawn-3")]
    settlement = run.pool.settle(summary_of(run, outcomes, uids, []), [])
    assert settlement.trained_uids == trained
    assert run.pool.carried_uids == ("drawn-3",)
    assert settlement.lost_reports == 2
    assert run.pool.check_ledger()["waiting"] == 2


def test_given_a_group_given_back_twice_when_settled_then_it_is_queued_once() -> None:
    run, groups = opened_run(StopRuleName.FIRST_COMPLETED)
    uids = [group.uid for group in groups]
    settlement = run.pool.settle(summary_of(run, [valid(uids[0]), valid(uids[1])], uids, []), [*groups[2:], groups[2]])
    assert settlement.requeued == 3
    run.pool.check_ledger()


def test_given_a_round_below_its_target_when_settled_then_it_is_refused() -> None:
    run, groups = opened_run(StopRuleName.FIFO)
    uids = [group.uid for group in groups]
    with pytest.raises(AssertionError, match="has not reached its target"):
        run.pool.settle(summary_of(run, [valid(uids[0])], uids, []), groups[1:])


def test_given_the_discard_strategy_when_groups_come_back_then_their_tokens_are_counted_and_gone() -> None:
    run, groups = opened_run(StopRuleName.FIRST_COMPLETED)
    generate(groups[2].trajectories[0], 7, 0)
    uids = [group.uid for group in groups]
    settlement = run.pool.settle(summary_of(run, [valid(uids[0]), valid(uids[1])], uids, []), groups[2:])
    assert (settlement.discarded_tok, settlement.kept, settlement.requeued) == (7, 0, 3)
    assert sum(group.generated_tok for group in run.pool.dispatch(2).groups) == 0


def test_given_kept_groups_when_dispatched_then_the_oldest_come_first_and_of_these_the_longest() -> None:
    run, groups = opened_run(StopRuleName.FIRST_COMPLETED, keeps=True)
    for group, age, tokens in zip(groups[2:], (0, 2, 0), (9, 1, 4), strict=True):
        group.trajectories[0].age = age
        generate(group.trajectories[0], tokens, 0)
    uids = [group.uid for group in groups]
    run.pool.settle(summary_of(run, [valid(uids[0]), valid(uids[1])], uids, []), groups[2:][::-1])
    dispatch = run.pool.dispatch(2)
    assert [group.uid for group in dispatch.groups] == ["drawn-3", "drawn-2", "drawn-4"]
    assert [group.age for group in dispatch.groups] == [3, 1, 1]


def test_given_a_stale_group_when_dispatched_then_it_is_retired_and_its_prompt_waits_in_front_under_a_new_name() -> None:
    run = Run(Random(0), 1, 3, True, StopRuleName.FIRST_COMPLETED, 1, step=1)
    run.draw(3)
    groups = run.pool.dispatch(1).groups
    generate(groups[1].trajectories[0], 5, 0)
    uids = [group.uid for group in groups]
    run.pool.settle(summary_of(run, [valid(uids[0])], uids[:2], [uids[2]]), [groups[1]])
    dispatch = run.pool.dispatch(3)  # trains version 2, so version 0 has staleness 2
    assert dispatch.retired_uids == (uids[1],) and dispatch.retired_tok == 5
    assert [group.uid for group in dispatch.groups] == ["again-1", uids[2]]
    assert dispatch.groups[0].prompt == groups[1].prompt and dispatch.groups[0].generated_tok == 0
    assert run.pool.ledger.retired == 1


def test_given_terms_that_do_not_close_when_checked_then_the_ledger_says_which() -> None:
    with pytest.raises(LedgerError, match="drawn=3, accounted=4"):
        Ledger(drawn=3, trained=1, filtered=1).check(waiting=1, buffered=1)
    assert Ledger(drawn=4, trained=1, filtered=1).check(waiting=1, buffered=1)["drawn"] == 4
