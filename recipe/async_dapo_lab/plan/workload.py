"""The prompts of a run, with what the model will answer: lengths and metrics, fixed by seed and number.

Whatever a system does, prompt 17 gets the same answers at its first attempt, so that two systems are compared on the
same data; a restarted group is answered anew.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ...async_dapo.core.prompt_history import PRIOR, PassCount
from ...async_dapo.core.trajectory import PromptGroup, Trajectory
from ...async_dapo.option_values import ConfigError
from ...async_dapo.record.history import load_history
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
    earlier_metrics: list[float]  # of an earlier visit to the same prompt, at the same pass rate
    earlier_lens_tok: list[int]
    attempt: int = 0
    calls_left_s: dict[int, float] = field(default_factory=dict)  # session -> of a call that a stop interrupted


class PassRates(Protocol):
    """Raw metrics of groups, as the reward function would return them."""

    def draw(self, rng: np.random.Generator, prompts: int, n: int, visits: int) -> np.ndarray:
        """[prompts, visits, n] metrics. Those of one prompt's first visits are the same, however many are drawn."""


@dataclass(frozen=True, slots=True)
class ValidShare:
    """A share of groups is valid, whatever their lengths and prompts."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError("valid_share", self.share, "must be in 0..1, above 0: no group would ever be trained on")

    def draw(self, rng: np.random.Generator, prompts: int, n: int, visits: int) -> np.ndarray:
        metrics = np.zeros((prompts, visits, n))
        for visit in range(visits):
            metrics[:, visit, 0] = rng.random(prompts) < self.share
        return metrics


class KnownPassRates(ABC):
    """Every prompt has a pass rate, and its answers are right or wrong by it, independently."""

    @abstractmethod
    def rates(self, rng: np.random.Generator, prompts: int) -> np.ndarray:
        """[prompts] pass rates."""

    def draw(self, rng: np.random.Generator, prompts: int, n: int, visits: int) -> np.ndarray:
        rates = self.rates(rng, prompts)[:, None, None]
        return (rng.random((prompts, visits, n)) < rates).astype(float)


@dataclass(frozen=True, slots=True)
class BetaPassRates(KnownPassRates):
    """Beta(a, b) over prompts."""

    a: float
    b: float

    def __post_init__(self) -> None:
        if self.a <= 0 or self.b <= 0:
            raise ConfigError("pass_rate_beta", [self.a, self.b], "both numbers must be > 0")

    def rates(self, rng: np.random.Generator, prompts: int) -> np.ndarray:
        return rng.beta(self.a, self.b, size=prompts)


class Workload:
    """Draws prompt groups of n trajectories.

    Args:
        limit_tok: responses end there at the latest [tokens].
        seed: decides everything.
    """

    def __init__(self, lengths: LengthModel, pass_rates: PassRates, *, n: int, limit_tok: int, seed: int) -> None:
        self._lengths = lengths
        self._pass_rates = pass_rates
        self._n = n
        self._limit_tok = limit_tok
        self._seed = seed
        self._block: list[Answers] = []
        self._drawn = 0
        self.num_valid = 0  # of these: groups whose metric varies
        self._valid_tok = 0.0  # sum of their mean response lengths

    def draw(self, count: int, step: int) -> list[PromptGroup]:
        """Fresh groups of the next prompts."""
        return [
            PromptGroup(
                uid=f"prompt-{answers.number}",
                key=f"prompt-{answers.number}",
                prompt={ANSWERS: answers},
                drawn_at_step=step,
                trajectories=[Trajectory(session_id=i) for i in range(self._n)],
            )
            for answers in self.answers(count)
        ]

    def answers(self, count: int) -> list[Answers]:
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
        answers.calls_left_s = {}
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
        metrics = self._pass_rates.draw(rng, BLOCK, self._n, visits=2)
        now, earlier = metrics[:, 0].tolist(), metrics[:, 1].tolist()
        earlier_lens_tok = self._cut(levels, rng).tolist()
        first = block * BLOCK
        return [
            Answers(first + i, float(levels[i, 0]), lens_tok[i], now[i], earlier[i], earlier_lens_tok[i])
            for i in range(BLOCK)
        ]

    def _cut(self, levels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Lengths of n responses for each level, at least 1 token and at most the limit."""
        shared, own = self._lengths.correlation**0.5, (1 - self._lengths.correlation) ** 0.5
        z = shared * levels + own * rng.standard_normal((len(levels), self._n))
        return np.clip(np.rint(self._lengths.of_normal(z)), 1, self._limit_tok).astype(int)


class _RecordedPassRates(KnownPassRates):
    """Pass rates as a run has recorded them (`async_dapo.selection.history_file`): each prompt is one of the recorded
    ones, with a pass rate drawn from its posterior.
    """

    def __init__(self, counts: list[PassCount]) -> None:
        self._right = np.array([count.right for count in counts])
        self._wrong = np.array([count.wrong for count in counts])

    def rates(self, rng: np.random.Generator, prompts: int) -> np.ndarray:
        drawn = rng.integers(len(self._right), size=prompts)
        return rng.beta(self._right[drawn] + PRIOR, self._wrong[drawn] + PRIOR)


def load_pass_rates(path: str) -> _RecordedPassRates:
    """
    Raises:
        ConfigError: when the file is missing, is something else, or knows no prompt.
    """
    counts = list(load_history(path, key="history_file").prompts.values())
    if not counts:
        raise ConfigError("history_file", path, "knows no prompt; it is written with a run's checkpoints")
    return _RecordedPassRates(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls:
    """Calls of tools in a simulated trajectory. Its response is cut into turns of equal length, with a call after each
    but the last.

    Attributes:
        count: calls of a trajectory.
        median_s, sigma: of a log-normal [s, of the logarithm].
        seed: decides every time.
    """

    count: int
    median_s: float
    sigma: float
    seed: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError("tool_calls", self.count, "must be >= 0")
        if self.median_s < 0:
            raise ConfigError("tool_median_s", self.median_s, "must be >= 0 seconds")
        if self.sigma < 0:
            raise ConfigError("tool_sigma", self.sigma, "must be >= 0; 0 = all calls take as long")

    def turn_left_tok(self, length_tok: int, done_tok: int) -> int:
        """Tokens until the turn ends in which a response of this length is."""
        turns = self.count + 1
        turn = done_tok * turns // length_tok  # the ones that have ended, at least
        while (end_tok := -(-length_tok * (turn + 1) // turns)) <= done_tok:
            turn += 1
        return min(end_tok, length_tok) - done_tok

    def takes_s(self, prompt: int, session: int, done_tok: int) -> float:
        """The call that comes after so many tokens."""
        rng = np.random.default_rng((self.seed, prompt, session, done_tok))
        return float(self.median_s * np.exp(self.sigma * rng.standard_normal()))
