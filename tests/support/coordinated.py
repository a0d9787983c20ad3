"""What a coordinator meets in its tests: a load balancer that only stops, ends of groups, a worker that takes one."""

import asyncio

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinator

from .simulation import now_s


class FakeBalancer:
    """Knows only how to stop, which takes a while or fails."""

    def __init__(self, takes_s: float = 0.0, error: Exception | None = None) -> None:
        self.stops_s: list[float] = []
        self._takes_s = takes_s
        self._error = error

    async def stop(self) -> float:
        self.stops_s.append(now_s())
        if self._error is not None:
            raise self._error
        await asyncio.sleep(self._takes_s)
        return self._takes_s


def ended(uid: str, verdict: Verdict = Verdict.VALID) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=verdict)


async def take(it: EarlyStoppingCoordinator, round_id: str = "step-1", worker: int = 0) -> str:
    """The uid of a group that is there to be taken."""
    ticket = await it.take_group(round_id, worker)
    assert ticket is not None
    return ticket.prompt_uid
