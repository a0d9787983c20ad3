"""Mixes of data sets, and what the planner's machinery makes of them: prompts of several sources in one run."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from recipe.async_dapo.core.mix import ALL
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.workload import Answers, Workload

FILE = "shares.csv"
AS_DRAWN = "null"  # of `async_dapo.sources`


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One data set of a mix.

    Attributes:
        share: of all prompts [0-1].
        valid_share: of its groups that pass the filter [0-1].
    """

    name: str
    share: float
    median_tok: float
    valid_share: float
    sigma: float = 0.9


class MixedWorkload(Workload):
    """Prompts of several sources, each with lengths and a valid share of its own, in an order that the seed fixes."""

    def __init__(self, mix: Sequence[Source], *, n: int, limit_tok: int, seed: int) -> None:
        self._mix, self._n = mix, n
        self._parts = [
            Workload(
                LogNormalLengths(median_tok=one.median_tok, sigma=one.sigma, correlation=0.5),
                one.valid_share,
                n=n,
                limit_tok=limit_tok,
                seed=1000 * seed + index,
            )
            for index, one in enumerate(mix)
        ]
        self._order = np.random.default_rng((seed, len(mix)))

    def answers(self, count: int, part: str = ALL) -> list[Answers]:
        """Of the next prompts of a source, or of all in the order of the data."""
        names = [one.name for one in self._mix]
        if part != ALL:
            return [self._next(names.index(part)) for _ in range(count)]
        shares = [one.share for one in self._mix]
        return [self._next(int(index)) for index in self._order.choice(len(shares), size=count, p=shares)]

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        groups = super().draw(count, step, part)
        for group in groups:
            answers: Answers = group.prompt["answers"]
            group.prompt["data_source"] = self._mix[answers.number % len(self._mix)].name
        return groups

    def answer_anew(self, answers: Answers) -> None:
        self._parts[answers.number % len(self._parts)].answer_anew(answers)

    @property
    def mean_drawn_tok(self) -> float:
        valid = sum(part.num_valid for part in self._parts)
        return sum(part.num_valid * part.mean_drawn_tok for part in self._parts) / max(1, valid)

    def _next(self, index: int) -> Answers:
        (answers,) = self._parts[index].answers(1)
        answers.number = answers.number * len(self._parts) + index  # no two of the run are the same, and it says whose
        return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedScenario(Scenario):
    """A setting whose prompts are of several sources."""

    mix: tuple[Source, ...]

    def workload(self) -> MixedWorkload:
        return MixedWorkload(self.mix, n=self.rollout_n, limit_tok=self.max_response_length, seed=self.seed)


SHORT_EASY = Source(name="short, easy", share=0.5, median_tok=800, valid_share=0.7)
LONG_HARD = Source(name="long, hard", share=0.5, median_tok=5000, valid_share=0.4)
RARELY_VALID = Source(name="rarely valid", share=0.2, median_tok=2500, valid_share=0.06)


def _with_share(source: Source, share: float) -> Source:
    return replace(source, share=share)


TWO, THREE = "two sources", "three sources"
MIXES = {
    TWO: (SHORT_EASY, LONG_HARD),
    THREE: (_with_share(SHORT_EASY, 0.4), _with_share(LONG_HARD, 0.4), RARELY_VALID),
}
# One H100, Qwen3-8B: the engine holds two batches at once.
SETTING: dict[str, Any] = {
    "engine": "published-2025",
    "accelerator": "h100",
    "servers": 1,
    "train_batch_size": 16,
    "rollout_n": 4,
    "max_response_length": 16384,
    "updates": 1,
}


def scenario(mix: Sequence[Source], *, seed: int = 0, **inputs: object) -> MixedScenario:
    """The setting with this mix; lengths and valid share of the inputs are those of no source."""
    plain = Inputs.load({**SETTING, **inputs, "seed": seed}).scenario()
    return MixedScenario(**{one.name: getattr(plain, one.name) for one in fields(Scenario)}, mix=tuple(mix))
