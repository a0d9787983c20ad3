"""The processes of a reward worker on virtual time: who waits for whom, and who is to blame."""

import asyncio
from typing import Any

import pytest

from recipe.async_dapo.rollout.reward_isolation import RewardProcesses
from recipe.async_dapo.rollout.started_process import RewardNotLoaded, RewardProcessKilled

from ..support.fakes import ScriptedProcess
from ..support.simulation import now_s, settle

TIMEOUT_S = 60.0
START_S = 5.0


class Processes:
    """Starts processes and remembers them."""

    def __init__(self, *, takes_many: bool = False) -> None:
        self.started: list[ScriptedProcess] = []
        self._takes_many = takes_many

    async def start(self) -> ScriptedProcess:
        await asyncio.sleep(START_S)
        self.started.append(ScriptedProcess(takes_many=self._takes_many, timeout_s=TIMEOUT_S))
        return self.started[-1]

    @property
    def alive(self) -> int:
        return sum(process.is_alive for process in self.started)


async def result_of(worker: RewardProcesses, takes_s: float | None) -> tuple[Any, float]:
    """What a call gives, and when [s]."""
    try:
        return await worker.call({"takes_s": takes_s}), now_s()
    except RewardProcessKilled as error:
        return type(error), now_s()


async def results_of(worker: RewardProcesses, *takes_s: float | None) -> list[tuple[Any, float]]:
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(result_of(worker, seconds)) for seconds in takes_s]
    return [call.result() for call in calls]


@pytest.mark.parametrize("hanging", [1, 2, 5])
async def test_given_calls_that_never_return_then_they_alone_fail_and_their_processes_are_replaced(hanging: int):
    processes = Processes()
    worker = RewardProcesses(processes.start, limit=2)
    healthy = [0.1] * 20
    results = await results_of(worker, *[None] * hanging, *healthy)
    assert [result for result, _ in results] == [RewardProcessKilled] * hanging + ["score"] * 20
    rounds = (hanging + 1) // 2  # two hang at a time
    assert max(at_s for _, at_s in results) <= rounds * (TIMEOUT_S + START_S + 1) + 2 * START_S + 3
    assert processes.alive <= 2
    assert await worker.call({"takes_s": 1}) == "score"


async def test_given_one_call_that_never_returns_then_the_others_wait_for_a_second_process_and_no_longer() -> None:
    worker = RewardProcesses(Processes().start, limit=2)
    (killed, killed_s), *others = await results_of(worker, None, *[0.1] * 10)
    assert (killed, killed_s) == (RewardProcessKilled, START_S + TIMEOUT_S)
    assert [(result, at_s < 2 * START_S + 1 + 1.2) for result, at_s in others] == [("score", True)] * 10


async def test_given_quick_calls_then_one_process_does_all_of_them_in_order() -> None:
    processes = Processes()
    worker = RewardProcesses(processes.start, limit=8)
    results = await results_of(worker, *[0.5] * 20)
    assert [at_s for _, at_s in results] == pytest.approx([START_S + 0.5 * (k + 1) for k in range(20)])
    assert len(processes.started) == 1


async def test_given_slow_calls_then_as_many_processes_as_allowed_share_them() -> None:
    processes = Processes()
    await results_of(RewardProcesses(processes.start, limit=3), *[30.0] * 12)
    assert len(processes.started) == 3
    assert now_s() < 12 * 30 / 3 + 30


async def test_given_a_coroutine_function_then_its_calls_share_one_process() -> None:
    processes = Processes(takes_many=True)
    results = await results_of(RewardProcesses(processes.start, limit=4), *[30.0] * 500)
    assert len(processes.started) == 1
    assert results == [("score", START_S + 30.0)] * 500


async def test_given_a_coroutine_that_blocks_when_others_share_its_process_then_it_alone_fails() -> None:
    processes = Processes(takes_many=True)
    worker = RewardProcesses(processes.start, limit=2)
    results = await results_of(worker, 70.0 - 10, None, *[65.0] * 6)
    assert [result for result, _ in results] == ["score", RewardProcessKilled] + ["score"] * 6
    assert await worker.call({"takes_s": 1}) == "score"


async def test_given_a_process_that_cannot_start_then_each_call_has_the_error_and_none_waits_for_ever() -> None:
    async def cannot() -> ScriptedProcess:
        await asyncio.sleep(START_S)
        raise RewardNotLoaded("no such module")

    worker = RewardProcesses(cannot, limit=2)
    for _ in range(3):
        with pytest.raises(RewardNotLoaded):
            await worker.call({"takes_s": 1})


async def test_given_calls_cancelled_at_any_time_then_their_places_are_free() -> None:
    worker = RewardProcesses(Processes().start, limit=2)
    for cancelled_s in (0, 1, START_S, START_S + 1, START_S + 3, 20):
        calls = [asyncio.create_task(result_of(worker, 2.0)) for _ in range(6)]
        await asyncio.sleep(cancelled_s)
        for call in calls[::2]:
            call.cancel()
        await asyncio.wait(calls)
    await settle()
    assert await worker.call({"takes_s": 1}) == "score"
