from ..support import verl_imported  # noqa: F401 (first of all)

# isort: split

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.engines import lives

from ..support.fakes import FakeHandle
from ..support.simulated_cluster import Cluster
from ..support.simulation import simulate


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on the loop of virtual time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    simulate(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(autouse=True)
def engines_are_killed_as_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "ray", SimpleNamespace(kill=FakeHandle.kill))


@pytest.fixture
def clusters() -> Iterator[list[Any]]:
    """What a test puts here is closed when it ends."""
    started: list[Any] = []
    yield started
    for cluster in started:
        cluster.close()


@pytest.fixture
def start(clusters: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts clusters."""

    def start_cluster(opts: AsyncDAPOConfig, kind: type[Cluster] = Cluster, **arguments: Any) -> Cluster:
        clusters.append(kind(monkeypatch, opts, **arguments))
        return clusters[-1]

    yield start_cluster
    monkeypatch.undo()
