"""A group that is scored and stored as in a run, with answers that nobody generated, before there is a cluster."""

import asyncio
import copy
from types import SimpleNamespace
from typing import Any

from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.trainer.ppo.reward import resolve_reward_manager_cls
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ...config.options import AsyncDAPOConfig
from ...core.trajectory import PromptGroup, Trajectory
from ...recording import SampledTokens, TrajectoryRecorder, append_tokens
from ...rollout.agent_loops import Loops
from ...rollout.manager import make_group
from ...rollout.packed_output import PackedOutput
from ...rollout.reward import RewardScorer, ScoringWorker
from ...store import rows_of

TURNS = 2  # of a prompt and one answer, as verl counts
MOST_TOK = 256


class TrialGroups:
    """Scores and stores groups as a run does, with the run's reward manager in this process.

    Args:
        trial: calls the reward function, see `Declared.reward_trial`.
        options: the recipe's options.
    """

    def __init__(self, trial: Any, tokenizer: Any, options: AsyncDAPOConfig) -> None:
        async def call(**arguments: Any) -> Any:
            try:
                return await asyncio.wrap_future(trial.submit(arguments))
            except Exception as error:
                self._errors.append(error)
                raise

        manager = resolve_reward_manager_cls(trial.config)(config=trial.config, tokenizer=tokenizer, compute_score=call)
        self._tokenizer = tokenizer
        self._is_filtered = options.filter.metric is not None
        self._errors: list[Exception] = []  # of the function, in the newest trial
        self._scorer = RewardScorer(_scoring_worker(manager)._compute_score, options=options)

    def group(self, row: dict[str, Any], n: int) -> PromptGroup:
        """
        Raises:
            ConfigError: naming a column that no checkpoint could hold.
        """
        return make_group({"uid": "trial", **row}, n=n, step=0)

    async def score(self, group: PromptGroup, trajectory: Trajectory, answer: str) -> float:
        """
        Returns:
            What groups are filtered by: the metric, or the score where the filter is off.

        Raises:
            TrajectoryFailed, ConfigError: as in a run.
            Exception: that of the reward function, as it is, also where a reward manager would make it a score of 0.
        """
        end = self._tokenizer.eos_token_id or 0
        answer_ids = [*self._tokenizer.encode(answer, add_special_tokens=False)[:MOST_TOK], end]
        log_probs = [0.0] * len(answer_ids)
        recorder = TrajectoryRecorder(trajectory=trajectory, prompt_uid=group.uid, runner=Loops())
        append_tokens(recorder.begin_turn([end]), answer_ids, log_probs, [(0, len(answer_ids))])
        output = AgentLoopOutput(
            prompt_ids=[end],
            response_ids=answer_ids,
            response_mask=[1] * len(answer_ids),
            response_logprobs=log_probs,
            num_turns=TURNS,
            metrics=AgentLoopMetrics(),
        )
        self._errors.clear()
        try:
            await self._scorer.score([output], group.prompt, recorder)
        finally:
            if self._errors:
                raise self._errors[0]
        trajectory.finish([PackedOutput.pack(output, SampledTokens(trajectory.turns))])
        return self._scorer.metric_of(output) if self._is_filtered else float(output.reward_score)

    @staticmethod
    def store(group: PromptGroup) -> None:
        """Make the rows of the trajectories that were scored, and leave them."""
        list_of_dict_to_tensordict([fields for _, fields, _ in rows_of(group)])


def _scoring_worker(manager: Any) -> ScoringWorker:
    """With the reward manager beside it; in a run that is in another process."""

    async def compute_score(data: Any) -> Any:
        return await manager.run_single(copy.deepcopy(data))  # managers add to the prompt's columns

    return ScoringWorker([SimpleNamespace(compute_score=SimpleNamespace(remote=compute_score))])
