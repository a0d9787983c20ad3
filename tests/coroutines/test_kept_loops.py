"""A loop that is kept over rounds, at its end."""

import asyncio
import logging

import pytest

from recipe.async_dapo.core.recording import Recorder
from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.rollout import kept_loops


def test_given_a_loop_that_does_not_let_itself_be_cancelled_then_its_end_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_loops, "END_TIMEOUT_S", 0.01)

    async def end_a_stubborn_loop() -> None:
        released = asyncio.Event()

        async def run() -> list:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue
            return []

        recorder = Recorder(trajectory=Trajectory(session_id=0), prompt_uid="prompt-7")
        loop = kept_loops.KeptLoop(recorder, run())
        await asyncio.sleep(0)  # it begins
        await loop.end()
        released.set()
        await loop.outputs()

    with caplog.at_level(logging.WARNING):
        asyncio.run(end_a_stubborn_loop())
    assert "prompt-7" in caplog.text
