"""Which of a round's valid groups are trained on first."""

from .outcome import GroupOutcome, Verdict
from .round import RoundSummary
from .stop_rules import StopRuleName


def training_order(summary: RoundSummary, stop_rule: StopRuleName) -> list[GroupOutcome]:
    """The valid groups of a round, those to be trained on first in front."""
    valid = [outcome for outcome in summary.outcomes if outcome.verdict is Verdict.VALID]
    if stop_rule is not StopRuleName.FIRST_COMPLETED:
        position = {uid: i for i, uid in enumerate(summary.start_order)}
        valid.sort(key=lambda outcome: position[outcome.prompt_uid])
    return valid
