"""Workers with a scripted task, and the data plane that they write to."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo import store
from recipe.async_dapo.calls import recorded
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.engines.client import AsyncDAPOLLMClient
from recipe.async_dapo.rollout.worker import AsyncDAPOAgentLoopWorker


@dataclass
class Task:
    """What the model does with a prompt, and the reward with the answer. A metric may be an exception to be raised.

    `prompt_ids` is [index of the prompt, session].
    """

    length_of: Callable[[list[int]], int] = lambda prompt_ids: 1 + (7 * prompt_ids[0] + 3 * prompt_ids[1]) % 20
    metric_of: Callable[[list[int]], float | Exception] = lambda prompt_ids: float((prompt_ids[0] + prompt_ids[1]) % 2)
    scoring_s: float = 0.5
    tool_s: float = 0.0  # a tool is asked first, where it takes any time
    keeps_state: bool = False  # as the agent loop says of itself
    replayable: bool = True  # so, too
    has_ended: Callable[[list[int]], bool] = lambda response_ids: (
        True
    )  # else a tool is called, and another turn follows
    call_s: Callable[[list[int], int], float] = lambda prompt_ids, done_tok: 0.0
    turn_tok: int | None = None  # a response of turns this long, with a call after each but the last; None = one turn

    def is_whole(self, prompt_ids: list[int], response_ids: list[int]) -> bool:
        """Whether the response is over, and no other turn follows."""
        if self.turn_tok is not None and len(response_ids) < self.length_of(prompt_ids):
            return False
        return self.has_ended(response_ids)


class SimulatedWorker(AsyncDAPOAgentLoopWorker):
    """The real worker with a single-turn agent loop and a scripted reward."""

    def __init__(self, client: AsyncDAPOLLMClient, options: AsyncDAPOConfig, task: Task) -> None:
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
        agent = SimpleNamespace(default_agent_loop="single_turn_agent")
        turns = SimpleNamespace(max_tool_response_length=256, tool_response_truncate_side="middle")
        kwargs = SimpleNamespace(**sampling)
        rollout = SimpleNamespace(val_kwargs=kwargs, agent=agent, multi_turn=turns, **sampling)
        self.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        self.llm_client, self.processor = client, None
        self._options = options
        self._task = task
        self._agent_loops = self
        self.keeps_state, self.replayable = task.keeps_state, task.replayable
        self.loops_begun: list[tuple[str, int]] = []  # group, session
        self.active: dict[str, int] = {}  # running groups -> running trajectories
        self.max_active_groups = 0

    def make(self, name: str) -> "SimulatedWorker":
        """The agent loops are made by this worker, and all of them are this worker."""
        return self

    async def run(
        self, sampling_params: dict[str, Any], *, uid: str, session_id: int, index: int, **prompt: Any
    ) -> AgentLoopOutput:
        self.loops_begun.append((uid, session_id))
        self.active[uid] = self.active.get(uid, 0) + 1
        self.max_active_groups = max(self.max_active_groups, len(self.active))
        try:
            if self._task.tool_s:
                await recorded(asyncio.sleep, self._task.tool_s)
            return await self._generate(sampling_params, uid, [index, session_id])
        finally:
            self.active[uid] -= 1
            if not self.active[uid]:
                del self.active[uid]

    async def _generate(self, sampling_params: dict[str, Any], uid: str, prompt_ids: list[int]) -> AgentLoopOutput:
        response_ids: list[int] = []
        log_probs: list[float] = []
        if self._task.turn_tok is not None:
            sampling_params = sampling_params | {"max_tokens": self._task.turn_tok}
        while True:
            output = await self.llm_client.generate(
                f"{uid}-{prompt_ids[1]}", prompt_ids=prompt_ids + response_ids, sampling_params=sampling_params
            )
            response_ids, log_probs = response_ids + output.token_ids, log_probs + output.log_probs
            if self._task.is_whole(prompt_ids, response_ids):
                break
            await recorded(asyncio.sleep, self._task.call_s(prompt_ids, len(response_ids)))
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response_mask=[1] * len(response_ids),
            response_logprobs=log_probs,
            metrics=AgentLoopMetrics(),
        )

    async def _compute_score(self, outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        await asyncio.sleep(self._task.scoring_s)
        metric = self._task.metric_of(outputs[-1].prompt_ids)
        if isinstance(metric, Exception):
            raise metric
        outputs[-1].reward_score = metric
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": metric}


@dataclass
class FakeStore:
    """The data plane: partition -> key -> (fields, tag)."""

    rows: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = field(
        default_factory=lambda: {store.TRAIN: {}, store.VAL: {}}
    )

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("put_group", "batch_of", "forget_groups", "forget_prompts", "withhold"):
            monkeypatch.setattr(store, name, getattr(self, name))

    async def put_group(self, group: PromptGroup, *, partition_id: str, inputs_of: store.ModelInputs) -> None:
        await asyncio.sleep(0.1)
        for key, fields, tag in store.rows_of(group, inputs_of):
            self.rows[partition_id][key] = (fields, tag)

    def batch_of(self, uids: Sequence[str], *, partition_id: str) -> KVBatchMeta:
        keys = [key for uid in uids for key in sorted(self.rows[partition_id]) if key.split("_")[0] == uid]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[self.rows[partition_id][key][1] for key in keys])

    def forget_groups(self, uids: Sequence[str], *, partition_id: str) -> None:
        for key in self.batch_of(uids, partition_id=partition_id).keys:
            del self.rows[partition_id][key]

    def forget_prompts(self, uids: Sequence[str], *, partition_id: str) -> None:
        """There are no markers here."""

    def withhold(self, batch: KVBatchMeta, *, oldest_version: int) -> int:
        return sum(count for tag in batch.tags for version, count in tag["segments"] if version < oldest_version)


def random_task(seed: int) -> Task:
    """Long-tailed lengths and metrics by chance, the same for a trajectory whenever it is asked."""

    def length_of(prompt_ids: list[int]) -> int:
        return 1 + int(Random(f"{seed} {prompt_ids}").paretovariate(1.0)) % 200

    def metric_of(prompt_ids: list[int]) -> float:
        return float(Random(f"metric {seed} {prompt_ids}").random() < 0.5)

    return Task(length_of, metric_of, scoring_s=Random(seed).choice([0.0, 0.3, 5.0]))


def failing_task(seed: int) -> Task:
    """As `random_task`; some rewards raise."""
    task = random_task(seed)
    healthy = task.metric_of

    def metric_of(prompt_ids: list[int]) -> float | Exception:
        is_bad = Random(f"failure {seed} {prompt_ids}").random() < 0.1
        return ValueError("broken") if is_bad else healthy(prompt_ids)

    return Task(task.length_of, metric_of, task.scoring_s)
