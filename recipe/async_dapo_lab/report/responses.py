"""What a run records of its responses: a few of every step, with what was asked and answered, the reward, and which
policy version wrote which part; and the lengths of all groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from ...async_dapo.core.outcome import JUDGED, GroupOutcome, Verdict
from ...async_dapo.record.run_files import read_lines

SAMPLED = 4  # responses of a step
MOST_CHARS = 2000  # of a text that is kept; of a longer one beginning and end
_LEAST_CHARS = 120
MOST_GROUPS = 256  # of a step, evenly over its groups in the order of their ends: a long run's file stays small


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Neighbouring tokens of one origin: of a policy version, or (None) not sampled, as a tool's answer."""

    version: int | None
    tokens: int
    text: str

    @property
    def origin(self) -> str:
        return "not sampled" if self.version is None else f"version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledResponse:
    prompt: str
    reward: float
    age: int  # rounds it was carried over
    pieces: Sequence[Piece]

    @property
    def about(self) -> str:
        """For example `reward 1, 340 tokens: version 3 (300), version 4 (40); carried over 1 round`."""
        parts = ", ".join(f"{piece.origin} ({piece.tokens})" for piece in self.pieces)
        rounds = f"; carried over {self.age} round{'s' if self.age > 1 else ''}" if self.age else ""
        return f"reward {self.reward:.3g}, {sum(piece.tokens for piece in self.pieces)} tokens: {parts}{rounds}"


def shortened(text: str, most_chars: int = MOST_CHARS) -> str:
    left_out = len(text) - most_chars
    if left_out <= 0:
        return text
    half = most_chars // 2
    return f"{text[:half]} [... {left_out:,} characters ...] {text[-half:]}"


def pieces_of(origins: Sequence[tuple[int | None, int, str]]) -> tuple[Piece, ...]:
    """Pieces with their texts shortened, so that together they are not too long.

    Args:
        origins: of each piece its version, its tokens and its whole text.
    """
    most_chars = max(_LEAST_CHARS, MOST_CHARS // max(1, len(origins)))
    return tuple(
        Piece(version=version, tokens=tokens, text=shortened(text, most_chars)) for version, tokens, text in origins
    )


def line_of(step: int, responses: Sequence[SampledResponse]) -> Mapping[str, Any]:
    return {"step": step, "responses": [asdict(response) for response in responses]}


def read_responses(path: Path) -> dict[int, list[SampledResponse]]:
    """By step."""
    return {line["step"]: [_response(values) for values in line["responses"]] for line in read_lines(path)}


def _response(values: Mapping[str, Any]) -> SampledResponse:
    return SampledResponse(**{**values, "pieces": tuple(Piece(**piece) for piece in values["pieces"])})


def as_html(by_step: Mapping[int, Sequence[SampledResponse]]) -> str:
    """Those of the first, the middle and the last step; empty where none were recorded."""
    steps = sorted(step for step, responses in by_step.items() if responses)
    if not steps:
        return ""
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    return "<h3>Sampled responses</h3>" + "".join(
        f'<details class="responses"><summary>step {step}</summary>{"".join(_rows(by_step[step]))}</details>'
        for step in shown
    )


def _rows(responses: Sequence[SampledResponse]) -> Iterator[str]:
    for response in responses:
        yield f"<p><b>{escape(response.about)}</b></p><pre>{escape(response.prompt)}</pre>"
        for piece in response.pieces:
            yield f"<p>{escape(piece.origin)}</p><pre>{escape(piece.text)}</pre>"


def length_lines(step: int, outcomes: Sequence[GroupOutcome]) -> Iterator[Mapping[str, Any]]:
    """For `plan --from-run`: for each group that was judged a line, with its lengths and whether it is valid."""
    judged = [outcome for outcome in outcomes if outcome.verdict in JUDGED]
    for outcome in judged[:: max(1, -(-len(judged) // MOST_GROUPS))]:
        is_valid = outcome.verdict is Verdict.VALID
        yield {"step": step, "is_valid": is_valid, "response_lens_tok": list(outcome.response_lens_tok)}
