"""Stop rules against oracles that look at the whole history."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.stop_rules import StopRuleName, make_stop_rule

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
