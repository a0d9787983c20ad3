"""What the model of a rehearsal answers: how long, whether right, and in which tokens.

Fixed by seed, prompt and number of the answer, so that every system is rehearsed on the same responses. Every n answers
are a visit to the prompt; a model's request says neither of which visit it is nor of which try. A continued request is
known by its context: no two answers to a prompt begin alike, so the tokens so far say which one goes on.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...async_dapo.core.leases import RecentDict
from ..plan.lengths import LengthModel

NUMBER_TOK = 4  # the first tokens of an answer write its number
BASE = 10

RIGHT, WRONG, FILLER = "1", "0", "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Token ids that answers are made of.

    Attributes:
        digits: of 0 to 9.
        filler: fills an answer.
        right, wrong: what an answer ends with, before `end_of_text`.
    """

    digits: tuple[int, ...]
    filler: int
    right: tuple[int, ...]
    wrong: tuple[int, ...]
    end_of_text: int


@dataclass(slots=True)
class Answer:
    """One response of the model.

    Attributes:
        length_tok: with its end token, if it ends within the limit.
        is_cut: it reaches the limit, and has no end token.
    """

    number: int
    length_tok: int
    is_right: bool
    is_cut: bool
    vocabulary: Vocabulary = field(repr=False)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Its tokens from one position to another."""
        words = self.vocabulary
        ending = [*(words.right if self.is_right else words.wrong), *([] if self.is_cut else [words.end_of_text])]
        ending = ending[-max(0, self.length_tok - NUMBER_TOK) :] if self.length_tok > NUMBER_TOK else []
        ending_at = self.length_tok - len(ending)
        tokens = [words.filler] * (stop - start)
        for position in range(start, min(stop, NUMBER_TOK, ending_at)):
            tokens[position - start] = words.digits[self.number // BASE**position % BASE]
        for position in range(max(start, ending_at), stop):
            tokens[position - start] = ending[position - ending_at]
        return tokens


@dataclass(slots=True)
class _Prompt:
    level: float  # normal score of its length, common to its answers
    seed: int
    answered: int = 0


class AnswerBook:
    """All answers of a rehearsal, over all of its engines.

    Args:
        valid_share: of the visits [0-1].
        limit_tok: responses end there at the latest [tokens].
        turns: answers that make a response.
        n: answers to a prompt that make a visit.
        seed: decides everything.
        remembered: interrupted answers that can be continued [answers].
    """

    def __init__(
        self,
        lengths: LengthModel,
        valid_share: float,
        vocabulary: Vocabulary,
        *,
        limit_tok: int,
        n: int,
        seed: int,
        turns: int = 1,
        remembered: int = 100_000,
    ) -> None:
        self._lengths = lengths
        self._valid_share = valid_share
        self._vocabulary = vocabulary
        self._limit_tok = limit_tok
        self._turns = turns
        self._n = n
        self._seed = seed
        self._prompts: dict[bytes, _Prompt] = {}
        self._interrupted = RecentDict[bytes, list[tuple[Answer, int]]](remembered)

    def take(self, context_ids: Sequence[int]) -> tuple[Answer, int]:
        """The answer that goes on from a context, and how many of its tokens are in the context."""
        key = _digest(context_ids)
        if waiting := self._interrupted.get(key):
            return waiting.pop()
        prompt = self._prompts.get(key)
        if prompt is None:
            seed = int.from_bytes(key[:8], "little")
            level = float(np.random.default_rng((self._seed, seed)).standard_normal())
            prompt = self._prompts[key] = _Prompt(level, seed)
        answer = self._draw(prompt, prompt.answered)
        prompt.answered += 1
        return answer, 0

    def put_back(self, context_ids: Iterable[int], answer: Answer, done_tok: int) -> None:
        """An answer that was interrupted after `done_tok` tokens, all of them at the end of the context."""
        key = _digest(context_ids)
        waiting = self._interrupted.get(key)
        if waiting is None:
            self._interrupted[key] = [(answer, done_tok)]
        else:
            waiting.append((answer, done_tok))

    def _is_valid(self, prompt: _Prompt, visit: int) -> bool:
        """Whether the answers of a visit differ: the first is right then, and no other."""
        rng = np.random.default_rng((self._seed, prompt.seed))
        rng.standard_normal()  # the level
        return bool(rng.random(visit + 1)[visit] < self._valid_share)

    def _draw(self, prompt: _Prompt, number: int) -> Answer:
        rng = np.random.default_rng((self._seed, prompt.seed, 1 + number))  # (a, b, 0) is the same seed as (a, b)
        shared, own = self._lengths.correlation**0.5, (1 - self._lengths.correlation) ** 0.5
        z = shared * prompt.level + own * rng.standard_normal()
        length_tok = max(NUMBER_TOK + 2, round(float(self._lengths.of_normal(np.array([z]))[0]) / self._turns))
        visit, place = divmod(number, self._n)
        is_right = place == 0 and self._is_valid(prompt, visit)
        is_cut = length_tok > self._limit_tok
        return Answer(number, min(length_tok, self._limit_tok), is_right, is_cut, self._vocabulary)


def _digest(token_ids: Iterable[int]) -> bytes:
    return hashlib.blake2b(np.asarray(list(token_ids), dtype=np.int64).tobytes(), digest_size=16).digest()


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The tokens of a tokenizer that answers are written with."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return Vocabulary(
        digits=tuple(ids(str(digit))[-1] for digit in range(BASE)),
        filler=ids(FILLER)[-1],
        right=ids(RIGHT),
        wrong=ids(WRONG),
        end_of_text=tokenizer.eos_token_id,
    )


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *, metric: str = "acc", **_: Any
) -> dict[str, float]:
    """1 for an answer that ends as a right one does. The signature is that of verl's custom reward function.

    Args:
        metric: a further name for the score: the one that groups are filtered by.
    """
    score = float(solution_str.rstrip().endswith(RIGHT))
    return {"score": score, "acc": score, metric: score}
