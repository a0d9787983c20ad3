"""The prompts of a run, with what the model will answer: lengths and metrics, fixed by seed and number.

Whatever a system does, prompt 17 gets the same answers at its first attempt, so that two systems are compared on the
same data; a restarted group is answered anew.
"""

from dataclasses import dataclass

import numpy as np

from ...async_dapo.core.mix import ALL
from ...async_dapo.core.trajectory import PromptGroup, Trajectory
from .lengths import LengthModel

BLOCK = 1024  # prompts drawn from the random generator at a time
ANSWERS = "answers"  # key of a PromptGroup's data row


@dataclass(slots=True)
class Answers:
    """What the model answers to one prompt, per trajectory; the simulated data set's row."""

    number: int
    level: float  # normal score of the prompt's length, common to its trajectories
    response_lens_tok: list[int]
    metrics: list[float]
    attempt: int = 0


class Workload:
    """Draws prompt groups of n trajectories.

    Args:
        valid_share: of the groups, whatever their lengths and prompts [0-1].
        limit_tok: responses end there at the latest [tokens].
        seed: decides everything.
    """

    def __init__(self, lengths: LengthModel, valid_share: float, *, n: int, limit_tok: int, seed: int) -> None:
        self._lengths = lengths
        self._valid_share = valid_share
        self._n = n
        self._limit_tok = limit_tok
        self._seed = seed
        self._block: list[Answers] = []
        self._drawn = 0
        self.num_valid = 0  # of these: groups whose metric varies
        self._valid_tok = 0.0  # sum of their mean response lengths

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        """Fresh groups of the next prompts, all of one part of a mix where there is one."""
        return [
            PromptGroup(
                uid=f"prompt-{answers.number}",
                key=f"prompt-{answers.number}",
                prompt={ANSWERS: answers},
                drawn_at_step=step,
                trajectories=[Trajectory(session_id=i) for i in range(self._n)],
            )
            for answers in self.answers(count, part)
        ]

    def answers(self, count: int, part: str = ALL) -> list[Answers]:
        """Of the next prompts. A sample needs no groups, which take most of the time."""
        drawn = []
        for _ in range(count):
            if self._drawn % BLOCK == 0:
                self._block = self._draw_block(self._drawn // BLOCK)
            answers = self._block[self._drawn % BLOCK]
            self._drawn += 1
            if min(answers.metrics) < max(answers.metrics):
                self.num_valid += 1
                self._valid_tok += sum(answers.response_lens_tok) / self._n
            drawn.append(answers)
        return drawn

    def answer_anew(self, answers: Answers) -> None:
        """Give a restarted prompt other answers, as long on average."""
        answers.attempt += 1
        rng = np.random.default_rng((self._seed, answers.number, answers.attempt))
        answers.response_lens_tok = self._cut(np.full((1, 1), answers.level), rng)[0].tolist()

    @property
    def mean_drawn_tok(self) -> float:
        """Mean response length of the valid groups drawn so far, at their first attempt; 0 if there is none."""
        return self._valid_tok / self.num_valid if self.num_valid else 0.0

    def _draw_block(self, block: int) -> list[Answers]:
        rng = np.random.default_rng((self._seed, block))
        levels = rng.standard_normal((BLOCK, 1))
        lens_tok = self._cut(levels, rng).tolist()
        metrics = np.zeros((BLOCK, self._n))
        metrics[:, 0] = rng.random(BLOCK) < self._valid_share
        first = block * BLOCK
        return [Answers(first + i, float(levels[i, 0]), lens_tok[i], metrics[i].tolist()) for i in range(BLOCK)]

    def _cut(self, levels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Lengths of n responses for each level, at least 1 token and at most the limit."""
        shared, own = self._lengths.correlation**0.5, (1 - self._lengths.correlation) ** 0.5
        z = shared * levels + own * rng.standard_normal((len(levels), self._n))
        return np.clip(np.rint(self._lengths.of_normal(z)), 1, self._limit_tok).astype(int)
