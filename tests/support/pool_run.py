"""A training run reduced to the pool and its rounds, everything else left to chance, with what must hold after each."""

import pickle
from array import array
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from recipe.async_dapo.core.mix import Mix
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.pool import PoolWatch, PromptPool
from recipe.async_dapo.core.round import Round, RoundSpec, RoundSummary
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo.core.stop_rules import StopRuleName, ending_of
from recipe.async_dapo.core.trajectory import PromptGroup, Segment, Trajectory, Turn

N = 2
SOURCES = ("easy", "hard", "rare")


def fresh_group(uid: str, *, step: int = 1, prompt: dict[str, Any] | None = None) -> PromptGroup:
    """The key of its prompt is its uid."""
    trajectories = [Trajectory(session_id=k) for k in range(N)]
    return PromptGroup(uid=uid, prompt=prompt or {}, drawn_at_step=step, key=uid, trajectories=trajectories)


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
    queue: list[str] = field(default_factory=list)  # of the last round, in order
    expected_start: list[str] = field(default_factory=list)  # of what waits
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)  # uid -> (age, tokens)
    valid_tok: dict[str, int] = field(default_factory=dict)  # of groups that have ended valid
    prompts: dict[str, dict[str, Any]] = field(default_factory=dict)  # of all groups
    watches: Sequence[PoolWatch] = ()

    def __post_init__(self) -> None:
        self.pool = self.new_pool()

    def watched_by(self, *watches: PoolWatch) -> None:
        """Of a run that has not begun."""
        self.watches = watches
        self.pool = self.new_pool()

    @property
    def draws_again(self) -> bool:
        return ending_of(self.stop_rule).draws_again and not self.strategy_keeps

    def new_pool(self) -> PromptPool:
        return PromptPool(
            mix=Mix(OverSampling(target_valid_groups=self.target, batch_size=self.over_sampling)),
            mixes_versions=self.strategy_keeps,
            stop_rule=self.stop_rule,
            staleness=StalenessLimit(max_staleness=self.max_staleness),
            new_uid=self.new_uid,
            watches=self.watches,
        )

    def new_uid(self) -> str:
        self.again += 1
        return f"again-{self.again}"

    def draw(self, count: int) -> list[str]:
        """Draw so many prompts. Returns their uids."""
        numbers = range(self.drawn, self.drawn + count)
        rows = [{"number": number, "data_source": self.random.choice(SOURCES)} for number in numbers]
        groups = [fresh_group(f"drawn-{row['number']}", step=self.step, prompt=row) for row in rows]
        self.drawn += len(groups)
        self.prompts |= {group.uid: group.prompt for group in groups}
        self.pool.add_drawn(groups)
        return [group.uid for group in groups]

    def one_step(self) -> None:
        self.step += 1
        again_before, tok = self.again, self.tokens_held()
        retired_uids = self.pool.retire(self.step)
        missing = self.pool.missing_for_round()
        fresh = self.draw(sum(missing.values())) if missing else []
        groups = self.pool.dispatch()
        must_finish = self.pool.must_finish(self.step)
        self.check_dispatch(groups, retired_uids, must_finish, fresh, again_before)
        retired_tok = tok - self.tokens_held() - sum(group.generated_tok for group in groups)
        self.ended.update(retired_uids)
        opened = Round(
            RoundSpec(
                round_id=f"step-{self.step}",
                stop_rule=self.stop_rule,
                parts=self.pool.mix.quotas(self.pool.carried),
                drains=ending_of(self.stop_rule).drains,
                draws_again=self.draws_again,
                must_finish=must_finish,
            )
        )
        resumed = {group.uid for group in groups if group.age}
        summary, unfinished = self.roll_out(opened, groups)
        lost = set(summary.taken_unreported) - {group.uid for group in unfinished}
        gone = [group for group in groups if group.uid in lost] + (unfinished if not self.strategy_keeps else [])
        gone_tok = sum(group.generated_tok for group in gone)
        summary = self.pool.settle(summary, unfinished)
        redrawn_tok = sum(sum(o.response_lens_tok) for o in summary.ended(Verdict.REDRAWN))
        assert summary.discarded_tok == redrawn_tok + gone_tok + retired_tok
        assert summary.resumed == len(resumed.intersection(summary.start_order))
        self.check_settlement(summary, unfinished)

    def tokens_held(self) -> int:
        """Of unfinished and of valid groups."""
        kept, valid = self.pool.buffered, self.pool.carried_uids
        return sum(group.generated_tok for group in kept) + sum(self.valid_tok[uid] for uid in valid)

    def roll_out(self, opened: Round, dispatched: list[PromptGroup]) -> tuple[RoundSummary, list[PromptGroup]]:
        groups = {group.uid: group for group in dispatched}
        opened.add_groups([WaitingGroup(prompt_uid=uid, unfinished=len(one.unfinished)) for uid, one in groups.items()])
        running: dict[str, PromptGroup] = {}
        set_aside: list[PromptGroup] = []
        while not opened.is_stopped:
            if opened.wants_prompts:
                self.draw(self.over_sampling)
                more = {group.uid: group for group in self.pool.dispatch()}
                groups |= more
                opened.add_groups([WaitingGroup(prompt_uid=uid, unfinished=N) for uid in more])
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
        self.queue = list(groups)
        self.random.shuffle(unfinished := given_back + set_aside)
        return opened.close(), unfinished

    def end(self, opened: Round, running: dict[str, PromptGroup], set_aside: list[PromptGroup]) -> None:
        """A running group ends, with a verdict by chance."""
        uid = self.random.choice(list(running))
        group = running.pop(uid)
        verdict = self.random.choice([Verdict.VALID, *(one for one in Verdict if one is not Verdict.REDRAWN)])
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
                response_lens_tok=tuple(one.generated_tok for one in group.trajectories),
            )
        )

    def check_dispatch(
        self,
        groups: list[PromptGroup],
        retired_uids: list[str],
        must_finish: frozenset[str],
        fresh: list[str],
        again_before: int,
    ) -> None:
        uids = [group.uid for group in groups]
        assert len(set(uids)) == len(uids) and not self.ended & set(uids), "a group that had ended was started"
        resumed = [group for group in groups if group.age]
        order = [(group.age, group.generated_tok) for group in resumed]
        assert order == sorted(order, reverse=True), "not the oldest first, and of these the longest"
        assert groups[: len(resumed)] == resumed
        for group in resumed:
            assert (group.age, group.generated_tok) == self.kept.pop(group.uid)
        assert set(self.kept) <= set(retired_uids), "kept tokens vanished"
        assert all(group.generated_tok == 0 and group.age == 0 for group in groups[len(resumed) :])
        replaced = [f"again-{k}" for k in range(again_before + 1, self.again + 1)]
        again = {group.uid: group.prompt for group in groups if group.uid in replaced}
        assert [again[uid] for uid in replaced] == [self.prompts[uid] for uid in retired_uids]
        self.prompts |= again
        places = {uid: place for place, uid in enumerate(self.queue)}
        places |= {new: places.get(old, -1) for old, new in zip(retired_uids, replaced, strict=True)}
        waited = sorted([*replaced, *self.expected_start], key=lambda uid: places.get(uid, len(places)))
        assert uids[len(resumed) :] == [*waited, *fresh], "not first come, first served"
        limit = StalenessLimit(max_staleness=self.max_staleness)
        for group in resumed:
            oldest = min(group.versions(), default=None)
            assert (group.uid in must_finish) == limit.must_finish(oldest, self.step)
            assert not limit.is_too_stale(max(group.versions(), default=None), self.step)

    def check_settlement(self, summary: RoundSummary, unfinished: list[PromptGroup]) -> None:
        assert len(summary.trained_uids) == self.target
        assert not self.ended & set(summary.trained_uids), "a group was trained twice"
        gone = {o.prompt_uid for o in summary.outcomes if o.verdict in (Verdict.FILTERED, Verdict.FAILED)}
        self.ended |= gone | set(summary.trained_uids)
        valid = [o for o in summary.outcomes if o.verdict is Verdict.VALID]
        self.valid_tok |= {o.prompt_uid: sum(o.response_lens_tok) for o in valid}
        self.trained += summary.trained_uids
        ledger = self.pool.check_ledger()
        assert ledger["drawn"] == self.drawn + self.again
        assert ledger["trained"] == self.target * self.step
        self.check_each_is_in_one_term(ledger)
        given_back = {group.uid: group for group in unfinished}
        self.kept = {
            uid: (group.age, group.generated_tok)
            for uid, group in given_back.items()
            if self.strategy_keeps and group.has_started
        }
        redrawn = [outcome.prompt_uid for outcome in summary.ended(Verdict.REDRAWN)]
        if self.draws_again:
            assert not self.pool.carried, "a group was kept for being short"
        requeued = [uid for uid in summary.start_order if uid in given_back and uid not in self.kept]
        buffered_again = {group.uid for group in self.pool.buffered} - self.kept.keys()  # resumed, then not started
        self.kept |= {g.uid: (g.age, g.generated_tok) for g in self.pool.buffered if g.uid in buffered_again}
        lost = set(summary.taken_unreported) - given_back.keys()
        assert summary.lost_reports == len(lost)
        assert summary.requeued == len(requeued) + len(lost)
        never = set(summary.never_started) - buffered_again
        back = {*requeued, *redrawn, *lost, *never}
        self.expected_start = [uid for uid in self.queue if uid in back]

    def check_each_is_in_one_term(self, ledger: dict[str, int]) -> None:
        state = self.pool.state()
        held = {
            "waiting": {group.uid for group in state.waiting},
            "buffered": {group.uid for group in state.buffered} | {one.group.uid for one in state.carried},
        }
        assert {term: len(uids) for term, uids in held.items()} == {term: ledger[term] for term in held}
        assert len(self.ended) == sum(ledger[term] for term in ("trained", "filtered", "failed", "retired")), (
            "a group has ended twice"
        )
        named = [f"drawn-{k}" for k in range(self.drawn)] + [f"again-{k + 1}" for k in range(self.again)]
        everywhere = [*self.ended, *held["waiting"], *held["buffered"]]
        assert sorted(everywhere) == sorted(named), "a prompt is in no term, or in two"

    def restart_from_checkpoint(self) -> None:
        self.queue = []  # a checkpoint has the order of what waits, and nothing more
        state = deepcopy(self.pool.state())
        self.pool = self.new_pool()
        self.pool.restore(state)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """With options by chance."""
    return Run(
        random=draw(st.randoms(use_true_random=True)),
        target=draw(st.integers(1, 3)),
        over_sampling=draw(st.integers(1, 6)),
        strategy_keeps=draw(st.booleans()),
        stop_rule=draw(st.sampled_from(StopRuleName)),
        max_staleness=draw(st.sampled_from([None, 0, 1, 2])),
    )
