"""Stop rules against oracles that look at the whole history."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.stop_rules import StopRule, StopRuleName, make_stop_rule

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
    rule = make_stop_rule(name, target_valid_groups=target, carried_valid_groups=carried)
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


def rule_after(name: StopRuleName, ends: list[tuple[str, Verdict]]) -> StopRule:
    rule = make_stop_rule(name, target_valid_groups=2, carried_valid_groups=0)
    for uid in ("slow", "quick", "quicker"):
        rule.on_start(uid)
    for uid, verdict in ends:
        rule.on_end(uid, verdict)
    return rule


def test_given_two_quick_groups_valid_when_an_earlier_one_still_runs_then_only_fifo_waits_for_it() -> None:
    ends = [("quick", Verdict.VALID), ("quicker", Verdict.VALID)]
    assert rule_after(StopRuleName.FIRST_COMPLETED, ends).is_met
    assert rule_after(StopRuleName.DRAIN, ends).is_met
    assert not rule_after(StopRuleName.FIFO, ends).is_met
    assert rule_after(StopRuleName.FIFO, [*ends, ("slow", Verdict.FILTERED)]).is_met


@pytest.mark.parametrize("name", StopRuleName)
def test_given_fifo_order_when_all_ended_then_every_rule_agrees(name: StopRuleName) -> None:
    ends = [("slow", Verdict.VALID), ("quick", Verdict.FAILED), ("quicker", Verdict.VALID)]
    assert rule_after(name, ends).is_met
    assert not rule_after(name, ends[:2]).is_met
