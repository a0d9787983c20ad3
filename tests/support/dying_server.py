"""Our server on a scripted engine that can die, as an actor."""

import asyncio
from typing import Any

import pytest

from . import verl_imported  # noqa: F401 (first of all)
from .scripted_engine import ScriptedEngine, start_server


class DyingServer:
    def __init__(self) -> None:
        self._engine = ScriptedEngine(1000, token_s=0.01, admission_s=0.0)
        self._server = start_server(pytest.MonkeyPatch(), self._engine)

    async def ready(self) -> None:
        """Answers once the imports are done."""

    async def generate(self, *args: Any) -> Any:
        return await self._server.answer("generate", *args)

    async def die(self) -> None:
        while len(self._engine.core) < 3:  # noqa: ASYNC110 (the engine has no event for it)
            await asyncio.sleep(0.01)
        self._engine.die()
