"""One prompt group on a worker: run its trajectories, score each as it ends, judge the group with the last."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from verl.experimental.agent_loop import AgentLoopOutput

from ..config.options import AsyncDAPOConfig
from ..config.values import ConfigError, OnRewardError
from ..core.outcome import GroupOutcome, Verdict, is_certain, judge_group
from ..core.round import GroupEvent
from ..core.summed import Summed
from ..core.trajectory import BrokenRecord, PromptGroup, RoundCounts, Trajectory
from ..core.users_errors import Cause, TrajectoryFailed, place_of
from ..engines.engine_requests import EnginesUnavailable
from ..record.plain_values import NestedTooDeep
from ..recording import SampledTokens, TrajectoryInterrupted, TrajectoryRecorder, current_recorder
from ..runtime.actor_watch import ActorDied
from .agent_loops import Loops
from .packed_output import PackedOutput
from .reward import RewardScorer, cause_of

logger = logging.getLogger(__name__)

RunAgentLoop = Callable[[PromptGroup, Trajectory], Awaitable[list[AgentLoopOutput]]]


@dataclass(slots=True, kw_only=True)
class WorkerReport(Summed):
    """A worker's report of a round, or the sum of all workers' reports."""

    unfinished: list[PromptGroup] = field(default_factory=list)
    counts: RoundCounts = field(default_factory=RoundCounts)


@dataclass(slots=True)
class _RunningTrajectories:
    """The trajectory tasks of a round, so that the stop can end those that no engine will give back."""

    is_stopping: bool = False
    _recorders: dict[asyncio.Task, TrajectoryRecorder] = field(default_factory=dict)

    def add(self, task: asyncio.Task, recorder: TrajectoryRecorder) -> None:
        self._recorders[task], recorder.interrupt = recorder, task.cancel
        task.add_done_callback(lambda done: self._recorders.pop(done))
        if self.is_stopping:  # its group was handed out just before the stop
            recorder.stop()
            task.cancel()

    def interrupt(self) -> None:
        """No loop takes another step; a request that is out comes back by itself when the engines stop."""
        self.is_stopping = True
        for task, recorder in list(self._recorders.items()):
            if not recorder.stop():
                task.cancel()

    def places(self) -> list[str]:
        """Where each of them is, in the user's code if it is there."""
        return [f"prompt {one.prompt_uid} in {place_of(task)}" for task, one in self._recorders.items()]


class GroupRollout:
    """Runs groups with one agent loop runner and one scorer.

    Args:
        run_agent_loop: runs one trajectory to its end and returns its unscored outputs.
        scorer: scores outputs inline.
        loops: of the worker.
        attempt: tells what a group asks from what it has asked in an earlier round, where it starts again in each.
        options: the recipe's options.
        notify: is called with what happens in a group, by its uid.
    """

    def __init__(
        self,
        run_agent_loop: RunAgentLoop,
        scorer: RewardScorer,
        *,
        loops: Loops,
        options: AsyncDAPOConfig,
        notify: Callable[[str, GroupEvent], None],
        attempt: str = "",
    ) -> None:
        self._run_agent_loop = run_agent_loop
        self._scorer = scorer
        self._loops = loops
        self._attempt = attempt
        self._on_reward_error = options.reward.on_error
        self._is_filtered = options.filter.metric is not None
        self._max_tokens_per_round = options.max_tokens_per_round
        self._notify = notify
        self.running = _RunningTrajectories()
        self._report = WorkerReport()

    def take_report(self) -> WorkerReport:
        """What has been counted since this was asked last; the groups that come back are not in it."""
        report, self._report = self._report, WorkerReport()
        report.counts += self._loops.take_counts()
        return report

    async def run(self, group: PromptGroup) -> GroupOutcome | None:
        """Bring a group to its end. None if it was interrupted by the stop; what it has generated is in the group.

        Raises:
            RuntimeError: when a reward fails for good and the policy is `raise`.
        """
        failures: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                self._start(group, tasks)
        except* TrajectoryFailed as errors:
            failures = list(leaves(errors))
        if failures:
            failure = cast(TrajectoryFailed, failures[0])
            if failure.reason.startswith("reward") and self._on_reward_error is OnRewardError.RAISE:
                raise RuntimeError(f"{failure} (async_dapo.reward.on_error=raise)") from failure
            logger.debug("prompt group %s dropped: %s", group.uid, failure)  # the coordinator tells each cause once
            return GroupOutcome.of(
                group, Verdict.FAILED, reason=failure.reason, cause=failure.cause, failed=len(failures)
            )
        return self._outcome(group)

    def _start(self, group: PromptGroup, tasks: asyncio.TaskGroup) -> None:
        for trajectory in group.unfinished:
            recorder = self._loops.recorder(trajectory, prompt_uid=group.uid, attempt=self._attempt)
            notify = functools.partial(self._notify, group.uid)
            recorder.begin_round(trajectory, runner=self._loops, limit_tok=self._max_tokens_per_round, notify=notify)
            self.running.add(tasks.create_task(self._run_trajectory(group, recorder)), recorder)

    async def _run_trajectory(self, group: PromptGroup, recorder: TrajectoryRecorder) -> None:
        current_recorder.set(recorder)
        trajectory = recorder.trajectory
        try:
            outputs = await self._run_agent_loop(group, trajectory)
            if recorder.rests:  # its loop has caught the interruption: what it returns may be cut off
                await recorder.all_back()
                raise TrajectoryInterrupted("its loop has returned after the stop")
            self._notify(group.uid, GroupEvent.GENERATED)
            await self._scorer.score(outputs, group.prompt, recorder)
        except (ActorDied, EnginesUnavailable, ConfigError, BrokenRecord):
            raise  # a part of the run is gone or broken, or the options are wrong: training ends
        except TrajectoryFailed as error:
            self._fail(group, error.reason, error.cause)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if recorder.rests or (task is not None and task.cancelling()):
                raise
            self._fail(group, "generation_error", Cause("its agent loop has cancelled itself"))
        except Exception as error:  # an agent loop or an engine may refuse a prompt: counted, policy drop_group
            self._fail(group, "generation_error", cause_of(error))
        else:
            recorder.drop_rest()
            if not trajectory.generated_tok or not all(output.response_ids for output in outputs):
                self._fail(group, "generation_error", Cause("its agent loop has returned without a generated token"))
                return
            sampled = SampledTokens(trajectory.turns)
            try:
                packed = [PackedOutput.pack(output, sampled) for output in outputs]
            except NestedTooDeep as error:  # the policy may have written it
                self._fail(group, "nested_too_deep", Cause(str(error)))
                return
            recorder.end()
            trajectory.finish(packed)
            self._note_certain(group)
        finally:
            try:
                await self._loops.settle(recorder)
            finally:
                self._report.counts += recorder.counts

    def _fail(self, group: PromptGroup, reason: str, cause: Cause) -> None:
        """A trajectory has failed for good: so does its group."""
        raise TrajectoryFailed(reason, cause)

    def _note_certain(self, group: PromptGroup) -> None:
        if not self._is_filtered or group.is_certain or not group.unfinished:
            return
        if is_certain(self._metrics(group)):
            group.is_certain = True
            self._notify(group.uid, GroupEvent.CERTAIN)

    def _outcome(self, group: PromptGroup) -> GroupOutcome | None:
        if group.unfinished:
            return None if self.running.is_stopping else GroupOutcome.of(group, Verdict.SET_ASIDE)
        if not self._is_filtered:
            return GroupOutcome.of(group, Verdict.VALID)
        metrics = self._metrics(group)
        return GroupOutcome.of(group, judge_group(metrics), metrics=metrics)

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
