"""Which policy version samples which token: the planner's simulation of the production scheduler, whose answers a real
model gives.

When a round's first request comes, every trajectory that has not ended goes on with the round's weights, some tokens at
a time as the engines come to need them. The scheduler decides on its virtual clock how many of these tokens are
generated before the round stops. The others have not happened: the next round samples anew from what was kept.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from recipe.async_dapo.core.mix import ALL
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo_lab.plan.engine import Request
from recipe.async_dapo_lab.plan.hardware import ACCELERATORS, load_model
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.round_simulation import SimulatedRound
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System
from recipe.async_dapo_lab.plan.workload import ANSWERS, Answers, Workload

from .model import Continuation, Kept, Sampling, TinyTransformer
from .rows import RESPONSES, Row
from .tasks import END, Exercise, Task, to_text, to_tokens

_BLOCK_TOK = 8  # that are sampled before the scheduler asks for more
_MOST_ROWS = 512  # that are sampled at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A trajectory to train on."""

    group: str
    prompt: list[int]
    tokens: list[int]
    log_probs: list[float]  # with which they were sampled [nats]
    versions: list[int]  # that sampled them
    reward: float


@dataclass(slots=True, kw_only=True)
class _ModelAnswers:
    """In the place of `Answers`: what the model answers under the weights of this round, as far as it was sampled.

    Attributes:
        begin: samples what all groups of the round begin with, if that was not done.
    """

    number: int
    exercise: Exercise
    prompt: list[int]
    sampled: list[Continuation]
    begin: Callable[[], None]

    @property
    def response_lens_tok(self) -> list[int]:
        self.begin()
        return [len(one.tokens) for one in self.sampled]

    @property
    def metrics(self) -> list[float]:
        return [reward(self.exercise, one.tokens) for one in self.sampled]


class _Exercises(Workload):
    """Groups of a task's exercises in place of simulated ones."""

    def __init__(self, scenario: Scenario, task: Task, seed: int, begin: Callable[[], None]) -> None:
        n, limit_tok = scenario.rollout_n, scenario.max_response_length
        super().__init__(scenario.lengths, scenario.valid_share, n=n, limit_tok=limit_tok, seed=seed)
        self._task, self._rng, self._sessions = task, random.Random(f"{task.name}-{seed}"), range(n)
        self._numbers, self._begin = count(1), begin

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        return [self._group(step) for _ in range(count)]

    def _group(self, step: int) -> PromptGroup:
        exercise, number = self._task.exercise(self._rng, held_out=False), next(self._numbers)
        sampled = [Continuation() for _ in self._sessions]
        prompt = to_tokens(exercise.prompt)
        answers = _ModelAnswers(number=number, exercise=exercise, prompt=prompt, sampled=sampled, begin=self._begin)
        uid, own = f"prompt-{number}", [Trajectory(session_id=i) for i in self._sessions]
        return PromptGroup(uid=uid, key=uid, prompt={ANSWERS: answers}, drawn_at_step=step, trajectories=own)

    def answer_anew(self, answers: Answers) -> None:
        """A restarted group has no tokens that it could go on from."""


def _scenario(row: Row) -> Scenario:
    """Engines that all of the pool runs in at once; seconds do not matter, since every request gets a token a step."""
    return Scenario(
        model=load_model("qwen3-0.6b"),
        accelerator=ACCELERATORS["h100"],
        num_servers=2,
        max_num_seqs=-(-row.places // 2),
        train_batch_size=row.groups,
        rollout_n=RESPONSES,
        max_response_length=row.shape.limit_tok,
        prompt_len_tok=row.shape.prompt_tok,
        lengths=LogNormalLengths(median_tok=1.0, sigma=0.0, correlation=0.0),
        valid_share=1.0,
    )


class SampledRun(TrainingRun):
    """The rounds of a row, answered by a model; step s samples with the weights as they are, which are version s - 1.

    Attributes:
        trained: what the last step trains on, a group's trajectories next to each other.
    """

    def __init__(self, row: Row, model: TinyTransformer) -> None:
        where = _scenario(row)
        super().__init__(where, System(name=row.strategy, overrides=row.scheduling))
        self._workload = _Exercises(where, row.shape, row.seed, self._begin)
        self._row, self._task, self._model = row, row.shape, model
        self._older = deepcopy(model.state_dict())  # a version before the newest
        self._generator = torch.Generator().manual_seed(row.noise)
        self._kept: dict[str, list[Sampled]] = {}
        self._is_open = False
        self._to_begin: list[PromptGroup] = []
        self._samplings: dict[tuple[int, int], tuple[Sampling, int]] = {}  # and its row, in this round
        self._kv: dict[tuple[int, int], list[Kept]] = {}  # of what earlier rounds began
        self.trained: list[Sampled] = []
        for engine in self._fleet.engines.values():
            engine.more_of = self._more_of

    def _simulate(self, groups: Sequence[PromptGroup]) -> SimulatedRound:
        if not self._row.is_behind:
            return self._sampled_round(groups)
        newest = deepcopy(self._model.state_dict())
        self._model.load_state_dict(self._older)
        try:
            return self._sampled_round(groups)
        finally:
            self._model.load_state_dict(newest)
            self._older = newest

    def _sampled_round(self, groups: Sequence[PromptGroup]) -> SimulatedRound:
        self._to_begin, self._is_open = list(groups), True
        simulated = super()._simulate(groups)
        self._is_open = False
        if self._row.keeps_kv:
            self._keep_kv(simulated.unfinished)
        self._samplings.clear()
        return simulated

    def _keep_kv(self, unfinished: Iterable[PromptGroup]) -> None:
        for group in unfinished:
            answers: _ModelAnswers = group.prompt[ANSWERS]
            for one in (one for one in group.unfinished if one.generated_tok):
                sampling, row = self._samplings[place := (answers.number, one.session_id)]
                self._kv[place] = sampling.kept(row, self._task.prompt_tok + one.generated_tok - 1)

    def _draw(self, counts: Mapping[str, int]) -> list[PromptGroup]:
        groups = super()._draw(counts)
        if self._is_open:
            self._to_begin += groups
        return groups

    def _begin(self) -> None:
        """Begin to continue what has not ended. A round that needs nothing never comes here."""
        groups, self._to_begin = self._to_begin, []
        anew, resumed = list[tuple[_ModelAnswers, int]](), list[tuple[_ModelAnswers, int]]()
        for group in groups:
            answers: _ModelAnswers = group.prompt[ANSWERS]
            for trajectory in group.unfinished:
                i, done_tok = trajectory.session_id, trajectory.generated_tok
                del answers.sampled[i].tokens[done_tok:], answers.sampled[i].log_probs[done_tok:]
                if not self._is_whole(answers.sampled[i].tokens):
                    has_kv = done_tok > 0 and (answers.number, i) in self._kv
                    (resumed if has_kv else anew).append((answers, i))
        for rows in (anew, resumed):
            rows.sort(key=lambda row: len(row[0].sampled[row[1]].tokens))
            for first in range(0, len(rows), _MOST_ROWS):
                self._sample(rows[first : first + _MOST_ROWS], resumes=rows is resumed)

    def _sample(self, rows: Sequence[tuple[_ModelAnswers, int]], *, resumes: bool) -> None:
        prompts, continued = [answers.prompt for answers, _ in rows], [answers.sampled[i] for answers, i in rows]
        most_tok = [self._task.limit_tok - len(row.tokens) for row in continued]
        places = [(answers.number, i) for answers, i in rows]
        kept = [self._kv[place] for place in places] if resumes else None
        keeps = self._row.keeps_kv
        sampling = Sampling(self._model, prompts, continued, most_tok, self._generator, kept=kept, keeps=keeps)
        sampling.advance(_BLOCK_TOK)
        self._samplings |= {place: (sampling, row) for row, place in enumerate(places)}

    def _is_whole(self, tokens: Sequence[int]) -> bool:
        return len(tokens) >= self._task.limit_tok or END in tokens

    def _more_of(self, request: Request) -> int:
        """Tokens that come after those which an engine knows of."""
        answers: _ModelAnswers = request.owner.group.prompt[ANSWERS]
        i = request.owner.trajectory.session_id
        tokens, known_tok = answers.sampled[i].tokens, request.context_tok - self._task.prompt_tok
        if known_tok == len(tokens) and not self._is_whole(tokens):
            self._samplings[answers.number, i][0].advance(_BLOCK_TOK)
        return len(tokens) - known_tok

    def _store(self, group: PromptGroup) -> None:
        super()._store(group)
        answers: _ModelAnswers = group.prompt[ANSWERS]
        self._kept[group.uid] = [
            Sampled(
                group=group.uid,
                prompt=answers.prompt,
                tokens=(own := answers.sampled[one.session_id]).tokens,
                log_probs=own.log_probs,
                versions=[max(0, version - self._row.is_behind) for version, count in one.stamps for _ in range(count)],
                reward=reward(answers.exercise, own.tokens),
            )
            for one in group.trajectories
        ]

    def _measure(self, simulated: SimulatedRound, **kwargs: Any) -> StepMeasure:
        self.trained = [one for uid in simulated.summary.trained_uids for one in self._kept.pop(uid)]
        self._kept = {uid: self._kept[uid] for uid in self.pool.carried_uids}
        numbers = {group.prompt[ANSWERS].number for group in self.pool.buffered}
        self._kv = {place: kv for place, kv in self._kv.items() if place[0] in numbers}
        return super()._measure(simulated, **kwargs)


def reward(exercise: Exercise, tokens: list[int]) -> float:
    """1 for a right answer that has ended, else 0."""
    return float(tokens[-1:] == [END] and exercise.is_right(to_text(tokens[:-1])))
