"""The simulated cluster with our real servers, on emulated engines: a rehearsal without Ray, in virtual time."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from transfer_queue import KVBatchMeta

from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.engines.server_actor import ServerActor
from recipe.async_dapo_lab.plan.engine import Engine
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.workload import ANSWERS
from recipe.async_dapo_lab.rehearsal.answers import NUMBER_TOK, Answer, AnswerBook, Vocabulary
from recipe.async_dapo_lab.rehearsal.engine import LOG_PROB, EmulatedEngine
from recipe.async_dapo_lab.rehearsal.options import CompressedClock

from .scripted_engine import start_server
from .simulated_cluster import Cluster
from .simulated_worker import Task

WORDS = Vocabulary(digits=tuple(range(10)), filler=20, right=(21,), wrong=(22,), end_of_text=23)
LATENCY_S = 1e-4  # of every call
PROMPTS = 8192  # more than any test draws


class PlannedBook(AnswerBook):
    """Answers as long as the planner's: prompt [index, session] is a trajectory of the planner's prompt."""

    def __init__(self, scenario: Scenario) -> None:
        limit_tok, n = scenario.max_response_length, scenario.rollout_n
        super().__init__(scenario.lengths, scenario.valid_share, WORDS, limit_tok=limit_tok, n=n, seed=scenario.seed)
        self._workload = scenario.workload()
        self.planned = [group.prompt[ANSWERS] for group in self._workload.draw(PROMPTS, step=0)]

    def take(self, context_ids: Sequence[int]) -> tuple[Answer, int]:
        self._asked = context_ids
        return super().take(context_ids)

    def _draw(self, prompt: Any, number: int) -> Answer:
        index, session = self._asked
        answers = deepcopy(self.planned[index])
        for _ in range(number):
            self._workload.answer_anew(answers)
        length_tok = max(NUMBER_TOK + 2, answers.response_lens_tok[session])
        is_cut = length_tok == self._limit_tok
        return Answer(number, length_tok, answers.metrics[session] > 0, is_cut, WORDS)


class EmulatedCluster(Cluster):
    """Args:
    scenario: what the engines emulate; prompts have two tokens.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, opts: AsyncDAPOConfig, scenario: Scenario) -> None:
        self.scenario = scenario
        self.emulated: list[EmulatedEngine] = []
        self.book = PlannedBook(scenario)

        def metric_of(prompt_ids: list[int]) -> float:
            index, session = prompt_ids
            return self.book.planned[index].metrics[session]

        def has_ended(tokens: list[int]) -> bool:
            return tokens[-1] == WORDS.end_of_text or len(tokens) == scenario.max_response_length

        task = Task(metric_of=metric_of, scoring_s=0.0, has_ended=has_ended)
        super().__init__(monkeypatch, opts, task=task, num_servers=scenario.num_servers, latency_s=LATENCY_S)

    def _draw(self, count: int) -> list[PromptGroup]:
        """The planner's groups: with its uids, which decide what is kept."""
        groups = super()._draw(count)
        for group in groups:
            answers = self.book.planned[group.prompt["index"]]
            group.uid = f"prompt-{answers.number}"
        return groups

    def _make_servers(self, monkeypatch: pytest.MonkeyPatch, count: int) -> list[Any]:
        scenario = self.scenario
        clock = CompressedClock(1.0, origin_s=0.0, real_s=self.loop.time)
        actors: list[ServerActor] = []
        cost = scenario.step_cost(drafts=self.options.drafts is not None)
        for _ in range(count):
            model = Engine(cost, max_num_seqs=scenario.max_num_seqs)
            self.emulated.append(EmulatedEngine(model, self.book, clock))
            server = start_server(monkeypatch, self.emulated[-1])
            server.config.free_cache_engine = False
            actors.append(object.__new__(ServerActor))
            actors[-1]._server = server
        return actors

    def check(self, batch: KVBatchMeta) -> None:
        super().check(batch)
        held = sum(engine.model.num_running + engine.model.num_waiting for engine in self.emulated)
        assert held == 0

    def check_trajectory(self, fields: dict[str, Any], tag: dict[str, Any]) -> None:
        tokens = fields["responses"].tolist()
        assert tokens[-1] == WORDS.end_of_text or len(tokens) == self.scenario.max_response_length
        assert tokens.count(WORDS.end_of_text) <= 1, "two answers in one trajectory"
        assert set(fields["rollout_log_probs"].tolist()) == {LOG_PROB}
        assert sum(count for _, count in tag["segments"]) == len(tokens)

    def check_engines(self) -> None:
        assert not self.balancer._table.held_lease_ids and not self.balancer._table.num_queued
