"""The simulated loop itself: it must find what it is there to find."""

import asyncio

import pytest

from ..support.fakes import FakeHandle
from ..support.simulation import Deadlock, Orphans, Suspensions, simulate


def test_given_two_tasks_that_wait_for_each_other_when_simulated_then_it_is_a_deadlock_that_names_them() -> None:
    async def main() -> None:
        left, right = asyncio.Event(), asyncio.Event()

        async def wait_then_set(first: asyncio.Event, second: asyncio.Event) -> None:
            await first.wait()
            second.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_then_set(left, right))
            tasks.create_task(wait_then_set(right, left))

    with pytest.raises(Deadlock, match="wait_then_set"):
        simulate(main())


def test_given_a_task_that_outlives_the_simulation_when_it_ends_then_it_fails() -> None:
    async def main() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(1)))

    kept: list[asyncio.Task[None]] = []

    with pytest.raises(Orphans):
        simulate(main())


def test_given_an_error_that_nobody_looks_at_when_the_simulation_ends_then_it_fails() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        del task

    with pytest.raises(AssertionError, match="unseen"):
        simulate(main())


async def test_cancellation_arrives_at_the_chosen_await() -> None:
    seen: list[str] = []

    async def work() -> None:
        for step in ("first", "second", "third"):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                seen.append(step)

    await Suspensions(work(), cancel_at=frozenset({1}))
    assert seen == ["second"]


def test_given_a_call_nobody_awaits_any_more_when_its_awaiter_is_cancelled_then_the_call_goes_on() -> None:
    class Actor:
        finished = False

        async def work(self) -> None:
            await asyncio.sleep(5)
            self.finished = True

    async def main() -> bool:
        actor = Actor()
        call = FakeHandle(actor, latency_s=1).work.remote()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await call
        await asyncio.sleep(10)
        return actor.finished

    assert simulate(main())
