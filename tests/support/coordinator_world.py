"""A coordinator as a plain class, with a balancer that knows only how to stop, and rounds for it."""

import asyncio
from typing import Any

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinator, Ticket

from .fakes import FakeHandle
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


def spec(round_id: str = "step-1", **options: Any) -> RoundSpec:
    defaults: dict[str, Any] = {
        "stop_rule": StopRuleName.FIRST_COMPLETED,
        "target_valid_groups": 2,
        "carried_valid_groups": 0,
        "num_workers": 2,
        "drains": False,
    }
    return RoundSpec(round_id=round_id, **(defaults | options))


def tickets(*uids: str, unfinished: int = 1) -> list[Ticket]:
    return [Ticket(prompt_uid=uid, unfinished=unfinished, content=uid.encode()) for uid in uids]


def ended(uid: str, verdict: Verdict = Verdict.VALID) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=verdict)


async def take(it: EarlyStoppingCoordinator, round_id: str = "step-1", worker: int = 0) -> str:
    """The uid of a group that is there to be taken."""
    ticket = await it.take_group(round_id, worker)
    assert ticket is not None
    return ticket.prompt_uid


def coordinator(balancer: FakeBalancer | None = None) -> EarlyStoppingCoordinator:
    return EarlyStoppingCoordinator(FakeHandle(balancer or FakeBalancer()))
