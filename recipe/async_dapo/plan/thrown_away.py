"""What other systems throw away at the end of a round, and this recipe keeps."""

from dataclasses import replace

from ..core.outcome import GroupOutcome, Verdict
from ..core.stop_rules import StopRuleName
from ..core.training_order import training_order
from .round_simulation import SimulatedRound
from .systems import Habits


def throw_away(simulated: SimulatedRound, habits: Habits, *, missing: int, stop_rule: StopRuleName) -> int:
    """Take out of a round what another system throws away and this recipe keeps. Returns its tokens."""
    summary, lost_tok = simulated.summary, 0
    if habits.drops_surplus:
        surplus = {outcome.prompt_uid for outcome in training_order(summary, stop_rule)[missing:]}
        dropped = [outcome for outcome in summary.outcomes if outcome.prompt_uid in surplus]
        kept = [outcome for outcome in summary.outcomes if outcome.prompt_uid not in surplus]
        failed = [replace(outcome, verdict=Verdict.FAILED, reason="surplus") for outcome in dropped]
        summary = replace(summary, outcomes=(*kept, *failed))
        lost_tok += sum(sum(outcome.response_lens_tok) for outcome in dropped)
    if habits.drops_interrupted:
        interrupted = [GroupOutcome.of(group, Verdict.FAILED, reason="interrupted") for group in simulated.unfinished]
        never_started = [
            GroupOutcome(prompt_uid=uid, verdict=Verdict.FAILED, reason="never started")
            for uid in summary.never_started
        ]
        summary = replace(summary, outcomes=(*summary.outcomes, *interrupted, *never_started), never_started=())
        lost_tok += sum(group.generated_tok for group in simulated.unfinished)
        simulated.unfinished = []
    simulated.summary = summary
    return lost_tok
