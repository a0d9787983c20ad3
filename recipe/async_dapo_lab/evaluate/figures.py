"""What answers to prompts come to: mean@k, pass@k and lengths, of all of them and of each data source."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

KEPT_FILE = "evaluated.json"  # {"sources": {uid: data source}, "lengths_tok": {uid: [tokens, ...]}}
METRIC = "acc"  # of the reward function's result; the score where that is no number


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    Attributes:
        uid: of its prompt.
        expected: the row's ground truth.
        value: the reward's `acc`, or else its score.
        length_tok: generated tokens; None where they were not counted.
    """

    uid: str
    source: str
    prompt: str
    text: str
    expected: Any
    score: float
    value: float
    length_tok: int | None


def best_of(values: Sequence[float], k: int) -> float:
    """Expected largest of k values that are drawn without replacement. Of zeros and ones: pass@k, without bias
    (Chen et al. 2021, arXiv:2107.03374, eq. 1).
    """
    total = math.comb(len(values), k)
    ordered = enumerate(sorted(values), start=1)
    return sum(value * math.comb(rank - 1, k - 1) for rank, value in ordered) / total


def read_dump(file: Path) -> list[dict[str, Any]]:
    """Lines of verl's dump. Answers may have characters such as U+2028, which `splitlines` takes for the end of one."""
    with file.open() as lines:
        return [json.loads(line) for line in lines]


def joined(
    dump: Iterable[Mapping[str, Any]], sources: Mapping[str, str], lengths_tok: Mapping[str, Sequence[int]]
) -> list[Answer]:
    """Answers of verl's dump of a validation.

    Args:
        dump: its lines. `uid` there is that of an output: of its prompt, its trajectory, its place in that. Of several
            outputs of a trajectory the last one counts.
        sources: uid of a prompt -> data source.
        lengths_tok: uid of a prompt -> generated tokens of each trajectory.
    """
    last: dict[tuple[str, int], tuple[int, Mapping[str, Any]]] = {}
    for row in dump:
        uid, trajectory, place = row["uid"].rsplit("_", 2)
        if int(place) >= last.get((uid, int(trajectory)), (0, row))[0]:
            last[uid, int(trajectory)] = int(place), row
    found = []
    for (uid, trajectory), (_, row) in sorted(last.items(), key=lambda item: (item[1][1]["input"], item[0])):
        lengths = lengths_tok.get(uid, ())
        found.append(
            Answer(
                uid=uid,
                source=sources.get(uid, ""),
                prompt=row["input"],
                text=row["output"],
                expected=row.get("gts"),
                score=float(row["score"]),
                value=float(row[METRIC] if isinstance(row.get(METRIC), int | float) else row["score"]),
                length_tok=lengths[trajectory] if trajectory < len(lengths) else None,
            )
        )
    return found


def figures(
    answers: Sequence[Answer], *, samples: int, prompts: int | None = None, longest_tok: int | None = None
) -> dict[str, Any]:
    """Of prompts that were asked `samples` times each; what failed has no answer, and counts as wrong.

    Args:
        prompts: number of prompts, some of which may have no answer at all; None: as many as the answers have.
        longest_tok: limit of a response; one of that length was cut.
    """
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for answer in answers:
        by_prompt[answer.uid].append(answer.value)
    values = [[*found, *[0.0] * (samples - len(found))] for found in by_prompt.values()]
    values += [[0.0] * samples] * ((prompts or 0) - len(values))
    result: dict[str, Any] = {
        "prompts": len(values),
        "samples": samples,
        "failed": samples * len(values) - len(answers),
        f"mean@{samples}": fmean(map(fmean, values)),
    }
    k = 2
    while k <= samples:  # by doubling, and the largest at the end
        result[f"pass@{k}"] = fmean(best_of(found, k) for found in values)
        k = samples if k < samples < 2 * k else 2 * k
    if lengths := sorted(answer.length_tok for answer in answers if answer.length_tok is not None):
        result["length_tok"] = {
            "mean": fmean(lengths),
            "median": median(lengths),
            "p99": lengths[math.ceil(0.99 * len(lengths)) - 1],
            "max": lengths[-1],
        }
        if longest_tok is not None:
            result["cut_share"] = sum(length >= longest_tok for length in lengths) / len(lengths)
    return result


def by_source(
    answers: Sequence[Answer], sources: Mapping[str, str], *, samples: int, longest_tok: int | None = None
) -> dict[str, dict[str, Any]]:
    """
    Args:
        sources: uid of a prompt -> data source, also of prompts whose every answer failed.
    """
    return {
        source: figures(
            [answer for answer in answers if answer.source == source],
            samples=samples,
            prompts=prompts,
            longest_tok=longest_tok,
        )
        for source, prompts in sorted(Counter(sources.values()).items())
    }


def table(answers: Sequence[Answer], *, rows: int, width: int = 48) -> str:
    """The first answers, right ones and wrong ones in turn, each on a line."""
    right = [answer for answer in answers if answer.value > 0]
    wrong = [answer for answer in answers if answer.value <= 0]
    chosen = [answer for pair in zip(right, wrong, strict=False) for answer in pair]
    chosen += [answer for answer in [*right, *wrong] if answer not in chosen]
    lines = [f"{'score':>6} {'tokens':>6}  {'prompt':<{width}} answer"]
    for answer in chosen[:rows]:
        length = "" if answer.length_tok is None else answer.length_tok
        prompt, text = (shortened(one, width) for one in (answer.prompt, answer.text))
        lines.append(f"{answer.score:>6.3g} {length:>6}  {prompt:<{width}} {text}")
    return "\n".join(lines)


def shortened(text: str, width: int) -> str:
    """Its beginning and its end, on one line."""
    line = " ".join(text.split())
    half = (width - 5) // 2
    return line if len(line) <= width else f"{line[:half]} ... {line[-half:]}"


def as_rows(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [asdict(answer) for answer in answers]
