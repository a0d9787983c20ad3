"""What a run records of its lengths, for the report and `plan --lengths`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...async_dapo.core.outcome import JUDGED, GroupOutcome, Verdict

MOST_GROUPS = 256  # of a step, evenly over its groups in the order of their ends: a long run's file stays small


def length_lines(step: int, outcomes: Sequence[GroupOutcome]) -> Iterator[Mapping[str, Any]]:
    """For each group that was judged a line, with its lengths and whether it is valid."""
    judged = [outcome for outcome in outcomes if outcome.verdict in JUDGED]
    for outcome in judged[:: max(1, -(-len(judged) // MOST_GROUPS))]:
        is_valid = outcome.verdict is Verdict.VALID
        yield {"step": step, "is_valid": is_valid, "response_lens_tok": list(outcome.response_lens_tok)}
