"""A stateful environment in a real process: kept over rounds, and built again after a kill."""

import asyncio
import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest
from verl.experimental.agent_loop import AgentLoopOutput

from examples.agent_loop import sandbox as sandbox_module
from examples.agent_loop.sandbox import MOST_CHARS, Sandbox
from recipe.async_dapo.calls import recorded
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.agents.kept_loops import KeptLoops

from ....support.rollout_world import Loop, calls_of, finished, group, outcome_of, reread, rollout

STEPS = 4
PATIENCE_S = 300.0  # what has not happened by then hangs
Step = tuple[asyncio.subprocess.Process | None, str]  # where a step was made, and what it printed
Told = asyncio.Queue[Step]


class Counting:
    """Counts in its sandbox, one call a step, and says where it is."""

    def __init__(self, told: Told, **said: Any) -> None:
        self.told = told
        self.__dict__ |= said

    async def run(self, sampling_params: dict[str, Any], *, trajectory: Trajectory) -> list[AgentLoopOutput]:
        sandbox = Sandbox()
        try:
            for _ in range(STEPS):
                sandbox.code.append("count = globals().get('count', 0) + 1; print(count)")
                printed = await recorded(sandbox.output)
                self.told.put_nowait((sandbox.process, printed.strip()))
                await asyncio.sleep(0.01)
            return finished(trajectory)
        finally:
            await sandbox.close()


def one() -> PromptGroup:
    return replace(group(), trajectories=[Trajectory(session_id=0)])


def counting(kept: KeptLoops, told: Told, **said: Any) -> Loop:
    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return await kept.run(lambda: Counting(told, **said), {}, trajectory=trajectory)

    return loop


async def rounds(held: PromptGroup, kept: KeptLoops, told: Told, count: int, **said: Any) -> list[Step]:
    """Each is stopped as soon as a step has been made; a loop that runs again says the earlier ones anew."""
    steps = []
    for number in range(1, count + 1):
        running = rollout(counting(kept, told, **said), is_filtered=False, kept=kept)
        task = asyncio.create_task(running.run(held))
        while (step := await told.get())[1] != str(number):
            pass
        steps.append(step)
        running.running.interrupt()
        assert await task is None
    return steps


@pytest.mark.parametrize("said", [{"keeps_state": True}, {"replayable": False}])
def test_given_a_loop_that_is_kept_when_rounds_stop_then_its_process_goes_on_and_a_kill_ends_it(said: Any) -> None:
    async def main() -> None:
        told: Told = asyncio.Queue()
        held, kept = one(), KeptLoops(most=1)
        steps = await rounds(held, kept, told, 3, **said)
        assert told.empty(), "no step was made or told twice"
        [process] = {process for process, _ in steps}
        assert process is not None
        saved = reread(held)
        await kept.end_others(frozenset())
        await asyncio.wait_for(process.wait(), PATIENCE_S)

        again = KeptLoops(most=1)
        running = rollout(counting(again, told, **said), is_filtered=False, kept=again)
        if "replayable" in said:
            assert saved.is_lost, "its group will be retired"
            return
        assert (await outcome_of(running, saved)).verdict is Verdict.VALID
        steps = [told.get_nowait() for _ in range(told.qsize())]
        assert [printed for _, printed in steps] == ["1", "2", "3", "4"]
        assert calls_of(running).made == 1, "another process has run all code before its first answer"
        assert steps[-1][0] not in (None, process)

    asyncio.run(main())


def work_in_a_sandbox(told: Connection) -> None:
    """The program of a worker: one call that never ends."""

    async def main() -> None:
        sandbox = Sandbox()
        sandbox.code = ["1", "while True: pass"]
        call = asyncio.create_task(sandbox.output())
        while sandbox.process is None:  # noqa: ASYNC110 (nobody says so)
            await asyncio.sleep(0.01)
        told.send(sandbox.process.pid)
        await call

    asyncio.run(main())


@pytest.mark.slow
def test_given_code_that_never_ends_when_its_worker_is_killed_then_its_process_ends() -> None:
    forked = multiprocessing.get_context("fork")  # with all that this process has imported
    hears, told = forked.Pipe(duplex=False)
    worker = forked.Process(target=work_in_a_sandbox, args=(told,))
    worker.start()
    told.close()  # the worker has its own
    with hears:
        sandbox = psutil.Process(hears.recv())
    worker.kill()
    worker.join()
    sandbox.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("piece", "answer"),
    [
        ("1 / 0", "ZeroDivisionError('division by zero')"),
        ("exit()", "SystemExit()"),
        ("print('a' * 10**6)", "a" * MOST_CHARS),
        ("import os; os._exit(1)", "it ended the interpreter; a new"),
        ("import sys; sys.__stdout__.write('no answer\\n')", "it ended the interpreter; a new"),
        ("while True: pass", "it took more than 0.5 s; a new"),
    ],
)
def test_given_any_code_when_it_runs_then_the_loop_has_an_answer_and_goes_on(
    monkeypatch, piece: str, answer: str
) -> None:
    monkeypatch.setattr(sandbox_module, "LIMIT_S", 0.5 if "while" in piece else PATIENCE_S)

    async def main() -> tuple[str, str]:
        sandbox = Sandbox()
        sandbox.code = [piece]
        first = await sandbox.output()
        monkeypatch.setattr(sandbox_module, "LIMIT_S", PATIENCE_S)
        sandbox.code.append("print('on')")
        try:
            return first, await sandbox.output()
        finally:
            await sandbox.close()

    first, second = asyncio.run(main())
    assert first.startswith(answer) and second.strip() == "on"
