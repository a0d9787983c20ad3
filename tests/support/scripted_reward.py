"""Scripted rewards, of verl's worker."""

import asyncio
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from recipe.async_dapo.config.options import RewardConfig
from recipe.async_dapo.config.values import OnRewardError


def reward_options(**changes: Any) -> RewardConfig:
    defaults: dict[str, Any] = {
        "timeout_s": 60.0,
        "processes": None,
        "waits_in_line": True,
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
