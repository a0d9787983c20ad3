"""Inline reward: scores a trajectory as soon as it ends, on verl's reward workers, with retries.

Whether a function, a reward manager or the agent loop itself has scored a trajectory: from here on the score is a
float, and the fields are plain data. The function runs in verl's reward workers, or where `extensions/reward_processes`
has it run.
"""

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from verl.experimental.agent_loop import AgentLoopOutput, AgentLoopWorker

from ..config.options import AsyncDAPOConfig
from ..config.values import ConfigError
from ..core.users_errors import (
    Cause,
    KnownPlaces,
    ProcessLost,
    RaisedElsewhere,
    TrajectoryFailed,
    describe,
    user_traceback,
)
from ..recording import TrajectoryRecorder
from ..runtime.actor_watch import ActorDied
from ..runtime.aio import RECONNECT_S, insist
from .reward_values import plain_reward

logger = logging.getLogger(__name__)

VERLS_FIELD = "reward"  # validation lists scores under it: another field of that name would shift them all
MOST_SCORE = 3.4e38  # the trainer reads scores as float32

ComputeScore = Callable[[list[AgentLoopOutput], dict[str, Any]], Awaitable[None]]


def cause_of(error: BaseException) -> Cause:
    """What a trajectory failed of, for people: one line with file and line, and the traceback of the user's code; of an
    exception that was raised here, in an actor, or in a process of its own."""
    if not isinstance(error, RayTaskError):
        return Cause(describe(error), user_traceback(error))
    bare = error.cause
    if isinstance(bare, RaisedElsewhere):
        return Cause(bare.summary, bare.traceback)
    return Cause(f"{type(bare).__name__}: {bare}", str(error))  # what Ray raises has its traceback there only


class ScoringWorker(AgentLoopWorker):
    """verl's agent loop worker as far as it scores. Without a processor: no reward manager is given what verl would
    make of pictures here, for each trajectory and on the event loop.
    """

    def __init__(self, reward_workers: list[Any]) -> None:
        self.processor = self.mm_processor_kwargs = None
        self.reward_loop_worker_handles = reward_workers


class RewardScorer:
    """Scores on verl's reward workers, never on this event loop.

    Args:
        compute_score: verl's worker method; sets `reward_score` and `reward_extra_info` of the last output.
        options: the recipe's options.
    """

    def __init__(self, compute_score: ComputeScore, *, options: AsyncDAPOConfig) -> None:
        self._compute_score = compute_score
        self._options = options.reward
        self._metric = options.filter.metric
        self._function = options.reward_function
        self._logged = KnownPlaces()

    async def score(self, outputs: list[AgentLoopOutput], sample: dict[str, Any], recorder: TrajectoryRecorder) -> None:
        """Score the last output, and give the others the same score, where verl's trainer reads it, too. The
        recorder's runner says whether what a stop interrupts here goes on or is scored again.

        Raises:
            TrajectoryFailed: when every attempt raised, timed out or returned no finite number, or the loop's own score
                is none: there is one attempt at that.
            ConfigError: when the metric that groups are filtered by is missing.
        """
        make = functools.partial(self._score, outputs, sample, recorder)
        scored = await recorder.runner.score(recorder, [output.response_ids for output in outputs], make)
        if self._metric is not None and self._metric not in scored["extra"]:  # of before a resume with another one
            scored = await make()
        for output in outputs:
            output.reward_score, output.extra_fields["reward_extra_info"] = scored["score"], scored["extra"]
        outputs[-1].metrics.compute_score = scored["seconds"]

    async def _score(
        self, outputs: list[AgentLoopOutput], sample: dict[str, Any], recorder: TrajectoryRecorder
    ) -> dict[str, Any]:
        is_own = outputs[-1].reward_score is not None
        source, attempts = ("the agent loop", 1) if is_own else (self._function, 1 + self._options.max_retries)
        sample = sample | {"extra_info": _with_turns(sample.get("extra_info"), outputs[-1].num_turns)}
        for attempt in range(attempts):
            try:
                async with asyncio.timeout(self._options.call_limit_s) as limit:
                    await self._insist(outputs, sample)
                return self._checked(outputs[-1], source)
            except TrajectoryFailed as failed:
                failure = failed
                outputs[-1].reward_score = None
            except TimeoutError as error:
                _count(error, recorder)
                detail = f"no answer within {self._options.call_limit_s} s" if limit.expired() else str(error)
                failure = TrajectoryFailed("reward_timeout", Cause(detail))
            except ConfigError:
                raise
            except Exception as error:  # the user's function may raise anything: policy `reward.on_error`
                is_of_ours = isinstance(error, RayActorError) and not isinstance(error, RayTaskError)
                if is_of_ours and not isinstance(error, ActorUnavailableError):  # else the function's, or tried again
                    raise ActorDied(f"a reward worker is gone: {error}") from error
                _count(error, recorder)
                failure = TrajectoryFailed("reward_error", cause_of(error))
            level = logging.WARNING if self._logged.is_new(failure.cause) else logging.DEBUG
            logger.log(level, "attempt %d to score a trajectory failed: %s", attempt + 1, failure)
        raise failure

    async def _insist(self, outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        """Score; again, if the reward worker cannot be reached: that is no fault of the reward function.

        Raises:
            TimeoutError: if it cannot be reached for good.
        """
        limit_s = self._options.unreachable_limit_s
        attempts = iter(
            range(math.ceil(limit_s / RECONNECT_S))
        )  # not a clock: a call that got through may wait in line

        def goes_on(error: ActorUnavailableError) -> bool:
            if isinstance(error, RayTaskError):  # the function itself has called an actor
                return False
            if next(attempts, None) is None:
                raise TimeoutError(f"its reward worker cannot be reached for {limit_s} s")
            logger.debug("a reward worker cannot be reached; the call is repeated")
            return True

        await insist(lambda: self._compute_score(outputs, sample), goes_on=goes_on)

    def metric_of(self, output: AgentLoopOutput) -> float:
        """The raw metric that groups are filtered by."""
        assert self._metric is not None, "the filter is off"
        return float(output.extra_fields["reward_extra_info"][self._metric])

    def _checked(self, output: AgentLoopOutput, source: str) -> dict[str, Any]:
        """Score and fields as the rest of the recipe relies on them.

        Raises:
            ConfigError: if the metric is missing.
            TrajectoryFailed: if score or metric is no finite number, or a field has verl's name for the score.
        """
        returned = plain_reward(output.extra_fields.get("reward_extra_info"))  # absent if the agent loop scored itself
        fields = returned if isinstance(returned, dict) else {} if returned is None else {"returned": returned}
        score = plain_reward(output.reward_score)
        numbers = [("score", score)]
        if VERLS_FIELD in fields:
            what = f"{source} returns `{VERLS_FIELD}`, verl's name for the score itself; rename it"
            raise TrajectoryFailed("reward_error", Cause(what))
        if self._metric is not None:
            if self._metric not in fields:
                what = f"{source} returns only {sorted(fields)}; return this key too, or choose one of those"
                raise ConfigError("algorithm.filter_groups.metric", self._metric, what)
            numbers.append((self._metric, fields[self._metric]))
        for name, value in numbers:
            if not isinstance(value, int | float) or not abs(value) <= MOST_SCORE:
                what = f"{source} returns {name}={value!r:.80}, which is no finite number"
                raise TrajectoryFailed("reward_not_finite", Cause(what))
        return {"score": float(score), "extra": fields, "seconds": output.metrics.compute_score}


def _count(error: Exception, recorder: TrajectoryRecorder) -> None:
    if isinstance(error, ProcessLost):
        recorder.count({error.metric: 1})


def _with_turns(extra_info: Any, turns: int) -> Any:
    """With the turns of the trajectory, which only some of verl's reward managers add."""
    return (extra_info or {}) | {"num_turns": turns} if isinstance(extra_info, dict | None) else extra_info
