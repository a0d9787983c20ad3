"""A round of several parts: it goes on until each has enough, none starves another, and each has the rule to itself."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.mix import Quota
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import Round, RoundSpec, RoundSummary
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.core.stop_rules import StopRuleName, ending_of

SHARE = {"easy": 0.9, "hard": 0.3, "rare": 0.1}  # of valid groups


class Played:
    """A round that is played to its end: prompts come when it asks for them, groups end in any order."""

    def __init__(self, random: Random, spec: RoundSpec) -> None:
        self.random, self.spec, self.round = random, spec, Round(spec)
        self.source_of: dict[str, str] = {}
        self.running: list[str] = []
        self.wanted: list[str] = []  # sources, as prompts were asked for

    def play(self) -> RoundSummary:
        while not self.round.is_stopped:
            if self.round.wants_prompts:
                self.add()
            if (uid := self.round.take(0)) is not None and (not self.running or self.random.random() < 0.7):
                self.running.append(uid)
                continue
            if uid is not None:
                self.running.append(uid)
            assert self.running, "nothing runs, nothing may start, and the round goes on"
            self.end(self.random.choice(self.running))
        return self.round.close()

    def add(self) -> None:
        for source, available in self.round.available.items():
            quota = self.spec.parts[source]
            if available.expected_valid(quota.expected_share) < quota.target_valid_groups:
                self.wanted.append(source)
                uids = [f"{source}-{len(self.source_of) + k}" for k in range(self.random.randint(1, 4))]
                self.source_of |= dict.fromkeys(uids, source)
                self.round.add_groups([WaitingGroup(prompt_uid=uid, unfinished=1, source=source) for uid in uids])

    def end(self, uid: str) -> None:
        self.running.remove(uid)
        is_valid = self.random.random() < SHARE[self.source_of[uid]]
        self.round.report(GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID if is_valid else Verdict.FILTERED))


def spec_of(rule: StopRuleName, quotas: dict[str, Quota], pool_size: int | None) -> RoundSpec:
    return RoundSpec(
        round_id="round",
        stop_rule=rule,
        drains=ending_of(rule).drains,
        draws_again=ending_of(rule).draws_again,
        pool_size=pool_size,
        parts=quotas,
    )


@given(
    random=st.randoms(use_true_random=True),
    rule=st.sampled_from(StopRuleName),
    targets=st.fixed_dictionaries(dict.fromkeys(SHARE, st.integers(0, 3))),
    carried=st.fixed_dictionaries(dict.fromkeys(SHARE, st.integers(0, 4))),
    slack=st.none() | st.integers(0, 4),
    pool_size=st.none() | st.integers(1, 3),
    begins_ahead=st.booleans(),
)
def test_given_any_quotas_then_the_round_ends_when_each_source_has_enough_by_the_rule(
    random, rule, targets, carried, slack, pool_size, begins_ahead
) -> None:
    quotas = {
        source: Quota(
            target_valid_groups=target,
            carried_valid_groups=carried[source],
            most_trainable=None if slack is None else max(1, target) + slack,
            begins_ahead=begins_ahead,
        )
        for source, target in targets.items()
    }
    played = Played(random, spec_of(rule, quotas, pool_size))
    summary = played.play()
    valid = Counter(carried)
    valid.update(played.source_of[outcome.prompt_uid] for outcome in summary.ended(Verdict.VALID))
    assert all(valid[source] >= target for source, target in targets.items())
    for source in SHARE:
        missing = targets[source] - carried[source]
        started = [uid for uid in summary.start_order if played.source_of[uid] == source]
        if missing <= 0:
            assert begins_ahead or not started, "a filled part began groups that nobody waits for"
        elif rule is StopRuleName.FIFO:
            check_prefix(started, summary, missing)
        assert missing > 0 or source not in played.wanted, "prompts for a part that has enough"


def check_prefix(started: list[str], summary: RoundSummary, missing: int) -> None:
    """Of one source: groups count up to the last of the prefix that has enough, and those behind it start again."""
    counted = {one.prompt_uid: one.verdict for one in summary.outcomes if one.verdict is not Verdict.REDRAWN}
    own = [counted.get(uid) for uid in started]
    length = max(place for place, verdict in enumerate(own) if verdict is Verdict.VALID) + 1
    assert None not in own[:length], "a group counts though one before it has not ended"
    assert own[:length].count(Verdict.VALID) == missing
    assert all(verdict is None for verdict in own[length:])


@pytest.mark.parametrize(("has_enough", "first"), [(False, "easy-0"), (True, "rare-0")])
def test_a_source_that_has_too_few_starts_before_one_that_is_ahead(has_enough: bool, first: str) -> None:
    quotas = {
        "easy": Quota(target_valid_groups=1, carried_valid_groups=int(has_enough)),
        "rare": Quota(target_valid_groups=1, carried_valid_groups=0),
    }
    opened = Round(spec_of(StopRuleName.FIRST_COMPLETED, quotas, None))
    opened.add_groups([WaitingGroup(prompt_uid=f"{name}-0", unfinished=1, source=name) for name in quotas])
    assert opened.take(0) == first


def test_groups_of_a_source_without_a_quota_wait_and_come_back() -> None:
    quotas = {"easy": Quota(target_valid_groups=1, carried_valid_groups=0)}
    opened = Round(spec_of(StopRuleName.FIRST_COMPLETED, quotas, None))
    opened.add_groups([WaitingGroup(prompt_uid="old", unfinished=1, source="left out", has_begun=True)])
    assert opened.take(0) is None and opened.wants_prompts
    assert opened.close().never_started == ("old",)


def test_no_round_waits_for_a_group_of_a_source_without_a_quota_that_grows_too_old() -> None:
    quotas = {"easy": Quota(target_valid_groups=1, carried_valid_groups=1)}
    spec = spec_of(StopRuleName.FIRST_COMPLETED, quotas, None)
    opened = Round(replace(spec, must_finish=frozenset({"old"})))
    opened.add_groups([WaitingGroup(prompt_uid="old", unfinished=1, source="left out", has_begun=True)])
    assert opened.is_stopped and opened.close().never_started == ("old",)


def test_how_groups_have_ended_is_told_of_one_source() -> None:
    quotas = {name: Quota(target_valid_groups=1, carried_valid_groups=0) for name in ("easy", "rare")}
    opened = Round(spec_of(StopRuleName.FIRST_COMPLETED, quotas, None))
    opened.add_groups([WaitingGroup(prompt_uid=name, unfinished=1, source=name) for name in quotas])
    for verdict in (Verdict.VALID, Verdict.FILTERED):
        uid = opened.take(0)
        assert uid is not None
        opened.report(GroupOutcome(prompt_uid=uid, verdict=verdict))
    assert str(opened.count_ended("rare")) == "1 filtered"
    assert str(opened.count_ended()) == "1 valid, 1 filtered"
