"""The asyncio helpers, under cancellation at every point."""

import asyncio
from typing import Any

import pytest

from recipe.async_dapo.runtime.aio import Gathered, run_to_completion
from recipe.async_dapo.runtime.time_limit import LimitReached, within

from ..support.simulation import now_s


class Cleanup:
    """Takes a while, in steps."""

    def __init__(self, steps: int = 3, error: Exception | None = None) -> None:
        self.is_done = False
        self._steps = steps
        self._error = error

    async def run(self) -> str:
        for _ in range(self._steps):
            await asyncio.sleep(1)
        self.is_done = True
        if self._error is not None:
            raise self._error
        return "cleaned"


@pytest.mark.parametrize("times_s", [[0.0], [0.5], [2.9], [0.0, 0.0], [0.5, 1.5], [0.5, 0.6, 2.0]])
async def test_given_cleanup_in_progress_when_cancelled_and_cancelled_again_then_it_finishes_first(times_s) -> None:
    cleanup = Cleanup()
    task = asyncio.create_task(run_to_completion(cleanup.run(), timeout_s=10))
    await asyncio.sleep(0)
    for time_s in times_s:
        asyncio.get_running_loop().call_at(time_s, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleanup.is_done and now_s() == pytest.approx(3)


async def test_given_cleanup_that_fails_then_its_error_is_raised_or_the_cause_of_the_cancellation() -> None:
    with pytest.raises(ValueError, match="broken"):
        await run_to_completion(Cleanup(error=ValueError("broken")).run(), timeout_s=10)
    task = asyncio.create_task(run_to_completion(Cleanup(error=ValueError("broken")).run(), timeout_s=10))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert isinstance(cancelled.value.__cause__, ValueError)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_given_cleanup_that_hangs_then_it_ends_at_its_deadline(is_cancelled: bool) -> None:
    task = asyncio.create_task(run_to_completion(asyncio.Event().wait(), timeout_s=60))
    await asyncio.sleep(1)
    if is_cancelled:
        task.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else TimeoutError):
        await task
    assert now_s() == pytest.approx(60)


async def after(delay_s: float, result: Any) -> Any:
    await asyncio.sleep(delay_s)
    if isinstance(result, BaseException):
        raise result
    return result


async def test_given_a_limit_then_it_is_told_from_a_timeout_of_what_is_awaited() -> None:
    async def wraps_its_cancellation() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise OSError("closed") from None

    assert await within(5, after(2, "in time")) == "in time"
    with pytest.raises(TimeoutError, match="its own"):
        await within(5, after(1, TimeoutError("its own")))
    began_s = now_s()
    for late in (asyncio.sleep(10), wraps_its_cancellation()):
        with pytest.raises(LimitReached):
            await within(5, late)
    assert now_s() - began_s == 10


async def test_what_is_added_in_one_turn_of_the_loop_or_during_a_call_goes_together_and_all_get_its_answer() -> None:
    sent: list[list[str]] = []

    async def send(items: list[str]) -> str:
        sent.append(items)
        await asyncio.sleep(1)
        if "broken" in items:
            raise ValueError(items)
        return "".join(items)

    calls = Gathered[str, str](send)
    asked = [asyncio.create_task(calls.ask(item)) for item in "abc"]
    await asyncio.sleep(0.5)
    asked += [asyncio.create_task(calls.ask(item)) for item in ("d", "broken")]
    await asyncio.sleep(0.1)
    asked[0].cancel(), asked[4].cancel()
    await asyncio.wait(asked)
    assert sent == [["a", "b", "c"], ["d", "broken"]]
    assert asked[1].result() == "abc" and isinstance(asked[3].exception(), ValueError)
    calls.add("broken")
    await asyncio.sleep(1.5)
    assert await calls.ask("e") == "e", "it goes on after a call that failed"
