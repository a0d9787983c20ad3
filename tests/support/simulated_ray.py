"""Ray, to those who wait for it without a loop of their own: while they do, the loop of virtual time runs."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.engines import replica
from recipe.async_dapo.rollout import all_workers, parking
from recipe.async_dapo.rollout import manager as manager_module
from recipe.async_dapo.training import engine_manager as engine_manager_module

from .fake_handle import FakeHandle, RemoteCall
from .object_store import StoredObject
from .simulation import VirtualTimeLoop


class SimulatedRay:
    """`ray.get`, `ray.wait`, `ray.put` and `ray.kill` of the modules that call them, and the clock of all."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    @property
    def remote(self) -> SimpleNamespace:
        """The module `ray`, as far as a trainer's side calls it."""
        return SimpleNamespace(get=self.get, wait=self.wait, kill=FakeHandle.kill)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remote = self.remote
        monkeypatch.setattr(manager_module, "ray", remote)
        for module in (all_workers, replica):
            monkeypatch.setattr(module, "ray", remote)
        monkeypatch.setattr(parking, "ray", SimpleNamespace(put=StoredObject, get=self._stored))
        if "agents" in declared():
            from recipe.async_dapo.extensions.agents import journal

            monkeypatch.setattr(journal, "ray", SimpleNamespace(get=self.get, wait=self._arrived))
        monkeypatch.setattr(engine_manager_module, "ray", remote)
        monkeypatch.setattr(time, "monotonic", self._loop.time)
        monkeypatch.setattr(time, "time", self._loop.time)

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        async def resolve() -> Any:
            if isinstance(refs, RemoteCall):
                return await refs
            return [await ref for ref in refs]

        async def within() -> Any:
            try:
                async with asyncio.timeout(timeout):
                    return await resolve()
            except TimeoutError as error:
                raise GetTimeoutError("Get timed out") from error

        return self._loop.run_until_complete(within())

    def wait(
        self, refs: list[RemoteCall], *, num_returns: int, timeout: float
    ) -> tuple[list[RemoteCall], list[RemoteCall]]:
        async def first() -> None:
            await asyncio.wait([ref._task for ref in refs], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

        assert num_returns == 1
        self._loop.run_until_complete(first())
        ready = [ref for ref in refs if ref.is_done][:1]
        return ready, [ref for ref in refs if ref not in ready]

    def _stored(self, ref: StoredObject | RemoteCall, timeout: float | None = None) -> Any:
        return ref.load() if isinstance(ref, StoredObject) else self.get(ref)

    def _arrived(self, refs: list[RemoteCall], *, num_returns: int, timeout: float) -> Any:
        assert (num_returns, timeout) == (len(refs), 0)
        return [ref for ref in refs if ref.is_done], [ref for ref in refs if not ref.is_done]
