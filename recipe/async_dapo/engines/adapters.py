"""LoRA adapters of an engine, of which verl asks before each request."""

import asyncio
from collections.abc import Callable
from typing import Any


class Adapters:
    """Those that are in an engine. They change with the policy version: the engine is asked once for each version, or
    until it has one.

    Args:
        policy_version: what the engine's weights are now.
    """

    def __init__(self, engine: Any, policy_version: Callable[[], int]) -> None:
        self._engine = engine
        self._policy_version = policy_version
        self._asked: asyncio.Task[set[int]] | None = None
        self._asked_of = -1  # policy version

    async def in_engine(self) -> set[int]:
        """Their numbers."""
        if self._asked is None or self._asked_of != self._policy_version():
            self._asked_of = self._policy_version()
            self._asked = asyncio.ensure_future(self._engine.list_loras())
        asked = self._asked
        try:
            found = await asyncio.shield(asked)
        finally:
            is_over = self._asked is asked and asked.done()
            if is_over and (asked.cancelled() or asked.exception() or not asked.result()):
                self._asked = None
        return found
