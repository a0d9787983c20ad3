"""Answers that a run gave to the same three prompts in each validation: recorded a line an answer, for the report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..run_files import read_lines

PROMPTS = 3
_MOST_CHARACTERS = 4_000  # of a prompt or an answer: its beginning and its end


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer; of several to a prompt, the first."""

    step: int
    prompt: str
    answer: str
    score: float


def sampled(prompts: Sequence[str], texts: Sequence[str], scores: Sequence[float]) -> Iterator[Mapping[str, Any]]:
    """Of the answers of a validation, those to three prompts: the same in every validation of the same data."""
    first: dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        first.setdefault(prompt, index)
    ordered = sorted(first, key=lambda prompt: (len(prompt), prompt))
    places = [part * (len(ordered) - 1) // (PROMPTS - 1) for part in range(PROMPTS)] if ordered else []
    for prompt in dict.fromkeys(ordered[place] for place in places):
        place = first[prompt]
        yield {"prompt": _cut(prompt), "answer": _cut(texts[place]), "score": float(scores[place])}


def read_samples(path: Path) -> list[Sample]:
    """In the order of their steps; of a validation that was repeated after a resume, the last."""
    found = {(line["step"], line["prompt"]): Sample(**line) for line in read_lines(path)}
    return sorted(found.values(), key=lambda sample: sample.step)


def as_html(samples: Sequence[Sample]) -> str:
    """Each prompt with its answers at the first, a middle and the last validation; empty where none was recorded."""
    steps = sorted({sample.step for sample in samples})
    chosen = list(dict.fromkeys(steps[part * (len(steps) - 1) // 2] for part in range(3) if steps))
    parts = []
    for prompt in dict.fromkeys(sample.prompt for sample in samples):
        answers = [sample for sample in samples if sample.prompt == prompt and sample.step in chosen]
        columns = "".join(
            f"<div><b>step {answer.step}, score {answer.score:.3g}</b><pre>{escape(answer.answer)}</pre></div>"
            for answer in answers
        )
        asked = f"<pre>{escape(prompt.strip())}</pre>"
        parts.append(f'<div class="asked">{asked}<div class="answers">{columns}</div></div>')
    return f"<h3>Answers in validations</h3>{''.join(parts)}" if parts else ""


def _cut(text: str) -> str:
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]}\n[...]\n{text[-half:]}"
