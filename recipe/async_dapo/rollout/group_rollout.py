"""One prompt group on a worker: run its trajectories, score each as it ends, judge the group with the last.

With screening only the first samples run; the others start with the score that makes the group certain, or never.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import cast

from ray.exceptions import RayActorError
from verl.experimental.agent_loop import AgentLoopOutput

from ..calls import TrajectoryGivenUp
from ..config import ConfigError
from ..core.failures import Cause
from ..core.group_filter import RunningVerdict, judge_group
from ..core.journal import CallCounts
from ..core.outcome import GroupOutcome, Verdict
from ..core.recording import Recorder, SampledTokens, current_recorder
from ..core.screening import Screening
from ..core.trajectory import BrokenRecord, PromptGroup, Trajectory
from ..core.turn_counts import TurnCounts
from ..engines.engine_requests import EnginesUnavailable, TrajectoryInterrupted
from ..options.groups import RewardConfig
from ..options.values import OnRewardError
from .call_runner import CallRunner
from .causes import cause_of
from .kept_loops import KeptLoops
from .packed_output import PackedOutput
from .reward import RewardFailed, RewardScorer
from .running import Listeners, RunningTrajectories
from .waiting import Waiting

logger = logging.getLogger(__name__)

RunAgentLoop = Callable[[PromptGroup, Trajectory], Awaitable[list[AgentLoopOutput]]]


class TrajectoryFailed(Exception):
    """A trajectory cannot be completed; `reason` is the counted kind."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(f"{reason}: {cause.summary}")
        self.reason = reason
        self.cause = cause


class GroupRollout:
    """Runs groups with one agent loop runner and one scorer.

    Args:
        run_agent_loop: runs one trajectory to its end and returns its unscored outputs.
        scorer: scores outputs inline.
        calls: makes the calls of agent loops, and those of the scorer.
        kept: agent loops that go on from round to round.
        reward: what to do when a reward fails for good.
        is_filtered: whether groups whose metric does not vary are dropped.
        screening: which trajectories of a group may run.
        keeps_failures: validation: a failed trajectory is left out, and its siblings go on.
        short_call_s: calls that take longer are told to the listeners [s].
        max_tokens_per_round: tokens a trajectory may generate before it is set aside until the next round; None = all.
        listeners: are told what becomes of the groups.
    """

    def __init__(
        self,
        run_agent_loop: RunAgentLoop,
        scorer: RewardScorer,
        *,
        calls: CallRunner,
        kept: KeptLoops,
        reward: RewardConfig,
        is_filtered: bool,
        screening: Screening,
        keeps_failures: bool,
        short_call_s: float,
        max_tokens_per_round: int | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self._run_agent_loop = run_agent_loop
        self._scorer = scorer
        self._calls = calls
        self._kept = kept
        self._reward = reward
        self._is_filtered = is_filtered
        self._screening = screening
        self._keeps_failures = keeps_failures
        self._max_tokens_per_round = max_tokens_per_round
        self._short_call_s = short_call_s
        self._listeners = listeners or Listeners()
        self.running = RunningTrajectories()
        self._told: set[str] = set()
        self._left_out: dict[str, list[TrajectoryFailed]] = {}  # of a validation, by group
        self.calls: list[CallCounts] = []
        self.turns: list[TurnCounts] = []
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
            self._listeners.abandon(group.attachments())
            return GroupOutcome.of(
                group, Verdict.FAILED, reason=failure.reason, cause=failure.cause, failed=len(failures)
            )
        if self._keeps_failures:
            return self._validated(group)
        if self._screening.is_screened_out(group):
            return GroupOutcome.of(group, Verdict.SCREENED, metrics=self._metrics(group))
        if group.unfinished:
            return None if self.running.is_stopping else GroupOutcome.of(group, Verdict.SET_ASIDE)
        return self._judge(group)

    def _start(self, group: PromptGroup, trajectories: Iterable[Trajectory], tasks: asyncio.TaskGroup) -> None:
        for trajectory in trajectories:
            recorder = self._kept.recorder_of(trajectory) or Recorder(
                trajectory=trajectory, prompt_uid=group.uid, waiting=Waiting(self._short_call_s)
            )
            recorder.begin_round(trajectory, runner=self._calls, limit_tok=self._max_tokens_per_round)
            recorder.waiting.begin_round(functools.partial(self._listeners.on_waiting, group.uid))
            self.running.add(tasks.create_task(self._run_trajectory(group, recorder, tasks)), recorder)

    async def _run_trajectory(self, group: PromptGroup, recorder: Recorder, tasks: asyncio.TaskGroup) -> None:
        current_recorder.set(recorder)
        trajectory = recorder.trajectory
        self._kept.claim(trajectory)
        try:
            outputs = await self._outputs_of(group, recorder)
            self._listeners.on_generated(group.uid)
            await self._scorer.score_once(outputs, group.prompt, recorder)
        except (RayActorError, EnginesUnavailable, ConfigError, BrokenRecord):
            raise  # a part of the system is gone or broken, or the options are wrong: training ends
        except RewardFailed as error:
            self._fail(group, error.reason, error.cause)
        except TrajectoryGivenUp as error:
            self._fail(group, error.reason, error.cause)
        except TrajectoryInterrupted:
            recorder.is_stopping = True
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if recorder.is_stopping or recorder.is_interrupted or (task is not None and task.cancelling()):
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
            self.turns.append(TurnCounts.of(trajectory.turns, recorder.calls_s))
            trajectory.finish([PackedOutput.pack(output, sampled) for output in outputs])
            self._note_certain(group, tasks)
        finally:
            await self._kept.settle(recorder)
            self._listeners.abandon(recorder.diverged_attachments)
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
        failure = TrajectoryFailed(reason, cause)
        if not self._keeps_failures:
            raise failure
        self._left_out.setdefault(group.uid, []).append(failure)
        level = logging.DEBUG if cause.place in self._told else logging.WARNING  # each cause once
        self._told.add(cause.place)
        logger.log(level, "a trajectory of validation prompt %s is left out: %s: %s", group.uid, reason, cause.summary)

    def _validated(self, group: PromptGroup) -> GroupOutcome:
        failures = self._left_out.pop(group.uid, [])
        if not failures:
            return GroupOutcome.of(group, Verdict.VALID)
        first = failures[0]
        return GroupOutcome.of(group, Verdict.VALID, reason=first.reason, cause=first.cause, failed=len(failures))

    def _note_certain(self, group: PromptGroup, tasks: asyncio.TaskGroup) -> None:
        if not self._is_filtered or self._keeps_failures or group.is_certain or not group.unfinished:
            return
        if RunningVerdict.of(self._metrics(group)).is_certain:
            held_back = self._screening.held_back(group)
            group.is_certain = True
            self._listeners.on_certain(group.uid)
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
