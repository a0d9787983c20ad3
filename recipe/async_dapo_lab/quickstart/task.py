"""The quick start's task: long additions on a two-digit counter, and a teacher that forgets to carry.

The problem `47+4*03` asks to add 4 to 47 three times (after 99 comes 00). The only accepted answer is the
complete working as on paper, `03:1'5 02:5_5 01:9_5`: additions left, units, carry (`'`) or none (`_`), tens.

- *Long tail.* The number of additions follows a truncated Pareto law (`TaskShape`) and each one costs seven tokens, so
  the length of a response belongs to its problem: a shorter one is wrong.
- *Room to learn.* The warm start imitates a teacher that forgets most carries and goes on from the wrong
  tens. Without a carry every answer of a group is right, with many every answer is wrong, and both are
  filtered. RL learns to carry, and while it does the valid groups move from short problems to long ones.

Standard library only; verl's reward workers import `compute_score` from here.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

DATA_SOURCE = "carry"
ADDEND = 4
MAX_PROMPT_TOK = 16

TOK_PER_ADDITION = 7
_COUNTER_SIZE = 100
_HELD_OUT_ONE_IN = 4
_CARRY_MARK = "_'"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShape:
    """How long problems are, and how often the teacher errs; the defaults are the quick start's.

    Attributes:
        shortest, longest: bounds of the number of additions [1-99].
        tail_exponent: a of P(additions >= k) = (k / shortest) ** -a; the smaller, the longer the tail.
        carelessness: probability that the teacher forgets a carry [0-1].
    """

    shortest: int = 1
    longest: int = 45
    tail_exponent: float = 0.8
    carelessness: float = 0.7

    @property
    def max_response_tok(self) -> int:
        """The longest working with its end token, and some room."""
        return TOK_PER_ADDITION * (self.longest + 3)


QUICK_START = TaskShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`start` plus `additions` times 4, modulo 100."""

    start: int
    additions: int

    @property
    def question(self) -> str:
        return f"{self.start:02d}+{ADDEND}*{self.additions:02d}"

    @property
    def answer(self) -> str:
        return self._working(lambda: False)

    @property
    def carries(self) -> int:
        """Where the teacher may err."""
        return (self.start % 10 + ADDEND * self.additions) // 10

    @property
    def is_held_out(self) -> bool:
        """Whether the problem is kept for validation: one in four, independent of its length."""
        return zlib.crc32(self.question.encode()) % _HELD_OUT_ONE_IN == 0

    def careless_answer(self, rng: random.Random, carelessness: float = QUICK_START.carelessness) -> str:
        """The working of the teacher, who goes on from a mistake without noticing it."""
        return self._working(lambda: rng.random() < carelessness)

    def _working(self, forgets_carry: Callable[[], bool]) -> str:
        tens, units = divmod(self.start, 10)
        steps = []
        for left in range(self.additions, 0, -1):
            carry, units = divmod(units + ADDEND, 10)
            if carry and forgets_carry():
                carry = 0
            tens = (tens + carry) % 10
            steps.append(f"{left:02d}:{units}{_CARRY_MARK[carry]}{tens}")
        return " ".join(steps)


def draw_problem(rng: random.Random, *, held_out: bool, shape: TaskShape = QUICK_START) -> Problem:
    """One problem of the training set or of the held-out set; no problem is in both."""
    while True:
        # By inverse transform.
        additions = int(shape.shortest * (1.0 - rng.random()) ** (-1.0 / shape.tail_exponent))
        if additions > shape.longest:
            continue
        problem = Problem(start=rng.randrange(_COUNTER_SIZE), additions=additions)
        if problem.is_held_out == held_out:
            return problem


def dataset_rows(count: int, *, seed: int, held_out: bool, shape: TaskShape = QUICK_START) -> Iterator[dict[str, Any]]:
    """Rows in verl's RLHF format; the same arguments give the same rows."""
    rng = random.Random(f"{DATA_SOURCE}-{seed}-{held_out}")
    for index in range(count):
        problem = draw_problem(rng, held_out=held_out, shape=shape)
        yield {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": problem.question}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": index, "additions": problem.additions},
        }


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **_kwargs: Any,
) -> dict[str, float]:
    """1 for the complete, correct working, else 0. The signature is that of verl's custom reward function."""
    accuracy = float(solution_str == ground_truth)
    return {"score": accuracy, "acc": accuracy}
