"""Scripted rewards: of verl's worker, and of the processes that run a reward function."""

import asyncio
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from recipe.async_dapo.config.options import RewardConfig
from recipe.async_dapo.config.values import OnRewardError
from recipe.async_dapo.rollout.started_process import CallLost, RewardProcessKilled


def reward_options(**changes: Any) -> RewardConfig:
    defaults: dict[str, Any] = {
        "timeout_s": 60.0,
        "processes": None,
        "max_retries": 0,
        "on_error": OnRewardError.DROP_GROUP,
    }
    return RewardConfig(**(defaults | changes))


class ScriptedReward:
    """`compute_score` of verl's worker. What an attempt does: a score, an error to raise, or seconds to take.

    Args:
        attempts: what the first, second, ... call does; the last one goes on.
        metric: name of the raw metric it returns; None = it returns no metric.
    """

    def __init__(self, *attempts: float | Exception, takes_s: float = 0.0, metric: str | None = "acc") -> None:
        self._attempts = list(attempts) or [1.0]
        self._takes_s = takes_s
        self._metric = metric
        self.calls = 0

    async def __call__(self, outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        attempt = self._attempts[min(self.calls, len(self._attempts) - 1)]
        self.calls += 1
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        if isinstance(attempt, Exception):
            raise attempt
        outputs[-1].reward_score = attempt
        outputs[-1].extra_fields["reward_extra_info"] = {} if self._metric is None else {self._metric: attempt}


class ScriptedProcess:
    """A reward process. How long a call takes is its argument `takes_s` [s]; None = it never returns.

    Args:
        takes_many: its function is a coroutine function.
        timeout_s: longest time a call may run [s].
    """

    def __init__(self, *, takes_many: bool = False, timeout_s: float = 60.0) -> None:
        self.takes_many = takes_many
        self.is_alive = True
        self._timeout_s = timeout_s
        self._ended = asyncio.Event()
        self.running = 0

    async def ask(self, arguments: dict[str, Any]) -> str:
        assert self.is_alive and (self.takes_many or not self.running)
        self.running += 1
        takes_s = arguments["takes_s"]
        try:
            async with asyncio.timeout(self._timeout_s if takes_s is None else takes_s):
                await self._ended.wait()
            raise CallLost
        except TimeoutError:
            if takes_s is not None:
                return "score"
            await self.end()
            if self.running > 1:
                raise CallLost from None
            raise RewardProcessKilled("no answer") from None
        finally:
            self.running -= 1

    async def end(self) -> None:
        self.is_alive = False
        self._ended.set()
