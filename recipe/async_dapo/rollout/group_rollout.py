"""One prompt group on a worker: run its trajectories, score each as it ends, judge the group with the last.

With screening only the first samples run; the others start with the score that makes the group certain, or never.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from ray.exceptions import RayActorError
from verl.experimental.agent_loop import AgentLoopOutput

from ..call_runner import CallRunner
from ..calls import TrajectoryGivenUp
from ..config import ConfigError, OnRewardError, RewardConfig
from ..core.failures import Cause
from ..core.group_filter import RunningVerdict, judge_group
from ..core.journal import CallCounts
from ..core.outcome import GroupOutcome, Verdict
from ..core.recording import Recorder, SampledTokens, current_recorder
from ..core.screening import Screening
from ..core.trajectory import Attachment, BrokenRecord, PromptGroup, Trajectory
from ..engines.engine_requests import EnginesUnavailable, TrajectoryInterrupted
from ..packed_output import PackedOutput
from .causes import cause_of
from .reward import RewardFailed, RewardScorer

logger = logging.getLogger(__name__)

RunAgentLoop = Callable[[PromptGroup, Trajectory], Awaitable[list[AgentLoopOutput]]]


class TrajectoryFailed(Exception):
    """A trajectory cannot be completed; `reason` is the counted kind."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(f"{reason}: {cause.summary}")
        self.reason = reason
        self.cause = cause


@dataclass(slots=True)
class RunningTrajectories:
    """The trajectory tasks of a round, so that the stop can end those that no engine will give back."""

    is_stopping: bool = False
    _recorders: dict[asyncio.Task, Recorder] = field(default_factory=dict)

    def add(self, task: asyncio.Task, recorder: Recorder) -> None:
        self._recorders[task] = recorder
        task.add_done_callback(lambda done: self._recorders.pop(done))
        if self.is_stopping:  # its group was handed out just before the stop
            recorder.is_stopping = True
            task.cancel()

    def interrupt(self) -> None:
        """No loop takes another step; a request that is out comes back by itself when the engines stop."""
        self.is_stopping = True
        for task, recorder in list(self._recorders.items()):
            recorder.is_stopping = True
            if not recorder.in_request:
                task.cancel()


class GroupRollout:
    """Runs groups with one agent loop runner and one scorer.

    Args:
        run_agent_loop: runs one trajectory to its end and returns its unscored outputs.
        scorer: scores outputs inline.
        calls: makes the calls of agent loops, and those of the scorer.
        reward: what to do when a reward fails for good.
        is_filtered: whether groups whose metric does not vary are dropped.
        screening: which trajectories of a group may run.
        keeps_failures: validation: a failed trajectory is left out, and its siblings go on.
        max_tokens_per_round: tokens a trajectory may generate before it is set aside until the next round; None = all.
        on_generated: told the group's uid when one of its trajectories has been generated to its end.
        on_certain: told the group's uid when two of its trajectories differ and others still run.
        abandon: takes requests that nobody will continue out of their engines.
    """

    def __init__(
        self,
        run_agent_loop: RunAgentLoop,
        scorer: RewardScorer,
        *,
        calls: CallRunner,
        reward: RewardConfig,
        is_filtered: bool,
        screening: Screening,
        keeps_failures: bool,
        max_tokens_per_round: int | None = None,
        on_generated: Callable[[str], None] = lambda uid: None,
        on_certain: Callable[[str], None] = lambda uid: None,
        abandon: Callable[[list[Attachment]], None] = lambda attachments: None,
    ) -> None:
        self._run_agent_loop = run_agent_loop
        self._scorer = scorer
        self._calls = calls
        self._reward = reward
        self._is_filtered = is_filtered
        self._screening = screening
        self._keeps_failures = keeps_failures
        self._max_tokens_per_round = max_tokens_per_round
        self._on_generated = on_generated
        self._on_certain = on_certain
        self._abandon = abandon
        self.running = RunningTrajectories()
        self._told: set[str] = set()
        self.calls: list[CallCounts] = []
        self.diverged_tok = 0
        self.reprefilled_tok: list[int] = []

    async def run(self, group: PromptGroup) -> GroupOutcome | None:
        """Bring a group to its end. None if it was interrupted by the stop; what it has generated is in the group.

        Raises:
            RuntimeError: when a reward fails for good and the policy is `raise`.
        """
        failures: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                self._start(group, self._screening.to_run(group), tasks)
        except* TrajectoryFailed as errors:
            failures = list(leaves(errors))
        if failures:
            failure = cast(TrajectoryFailed, failures[0])
            if failure.reason.startswith("reward") and self._reward.on_error is OnRewardError.RAISE:
                raise RuntimeError(f"{failure} (async_dapo.reward.on_error=raise)") from failure
            logger.debug("prompt group %s dropped: %s", group.uid, failure)  # the coordinator tells each cause once
            self._abandon(group.attachments())
            return GroupOutcome.of(
                group, Verdict.FAILED, reason=failure.reason, cause=failure.cause, failed=len(failures)
            )
        if self._keeps_failures:
            return GroupOutcome.of(group, Verdict.VALID)
        if self._screening.is_screened_out(group):
            return GroupOutcome.of(group, Verdict.SCREENED, metrics=self._metrics(group))
        if group.unfinished:
            return None if self.running.is_stopping else GroupOutcome.of(group, Verdict.SET_ASIDE)
        return self._judge(group)

    def _start(self, group: PromptGroup, trajectories: Iterable[Trajectory], tasks: asyncio.TaskGroup) -> None:
        for trajectory in trajectories:
            recorder = Recorder(
                trajectory=trajectory,
                prompt_uid=group.uid,
                runner=self._calls,
                round_limit_tok=self._max_tokens_per_round,
            )
            self.running.add(tasks.create_task(self._run_trajectory(group, recorder, tasks)), recorder)

    async def _run_trajectory(self, group: PromptGroup, recorder: Recorder, tasks: asyncio.TaskGroup) -> None:
        current_recorder.set(recorder)
        trajectory = recorder.trajectory
        try:
            outputs = await self._outputs_of(group, recorder)
            self._on_generated(group.uid)
            await self._scorer.score_once(outputs, group.prompt, recorder)
        except (RayActorError, EnginesUnavailable, ConfigError, BrokenRecord):
            raise  # a part of the system is gone or broken, or the options are wrong: training ends
        except RewardFailed as error:
            self._fail(group, error.reason, error.cause)
        except TrajectoryGivenUp as error:
            self._fail(group, error.reason, error.cause)
        except TrajectoryInterrupted:
            raise
        except Exception as error:  # an agent loop or an engine may refuse a prompt: counted, policy drop_group
            self._fail(group, "generation_error", cause_of(error))
        else:
            recorder.drop_rest()
            sampled = SampledTokens(trajectory.turns)
            trajectory.finish([PackedOutput.pack(output, sampled) for output in outputs])
            self._note_certain(group, tasks)
        finally:
            self._abandon(recorder.diverged_attachments)
            self.calls.append(recorder.calls)
            self.diverged_tok += recorder.diverged_tok
            self.reprefilled_tok += recorder.reprefilled_tok

    async def _outputs_of(self, group: PromptGroup, recorder: Recorder) -> list[AgentLoopOutput]:
        """
        Raises:
            ConfigError, TrajectoryGivenUp: also where the loop would go on after them.
        """
        try:
            return await self._run_agent_loop(group, recorder.trajectory)
        finally:
            if recorder.given_up is not None:
                raise recorder.given_up

    def _fail(self, group: PromptGroup, reason: str, cause: Cause) -> None:
        if not self._keeps_failures:
            raise TrajectoryFailed(reason, cause)
        level = logging.DEBUG if cause.place in self._told else logging.WARNING  # each cause once
        self._told.add(cause.place)
        logger.log(level, "a trajectory of validation prompt %s is left out: %s: %s", group.uid, reason, cause.summary)

    def _note_certain(self, group: PromptGroup, tasks: asyncio.TaskGroup) -> None:
        if not self._is_filtered or self._keeps_failures or group.is_certain or not group.unfinished:
            return
        if RunningVerdict.of(self._metrics(group)).is_certain:
            held_back = self._screening.held_back(group)
            group.is_certain = True
            self._on_certain(group.uid)
            self._start(group, held_back, tasks)

    def _judge(self, group: PromptGroup) -> GroupOutcome:
        if not self._is_filtered:
            return GroupOutcome.of(group, Verdict.VALID)
        metrics = self._metrics(group)
        is_kept = self._screening.is_kept(group.uid, metrics)
        return GroupOutcome.of(group, judge_group(metrics), metrics=metrics, is_kept=is_kept)

    def _metrics(self, group: PromptGroup) -> list[float]:
        """Of the trajectories that have ended."""
        ended = (trajectory for trajectory in group.trajectories if trajectory.is_finished)
        return [self._scorer.metric_of(trajectory.outputs[-1].rest) for trajectory in ended]


def leaves(errors: BaseExceptionGroup) -> Iterator[BaseException]:
    """The exceptions of a group, nested groups flattened."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error
