from ..support import verl_imported  # noqa: F401 (first of all)

# isort: split

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from recipe.async_dapo.config import AsyncDAPOConfig

from ..support.simulated_cluster import Cluster
from ..support.simulation import simulate


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on the loop of virtual time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    simulate(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts clusters, and ends them with the test."""
    clusters: list[Cluster] = []

    def start_cluster(opts: AsyncDAPOConfig, kind: type[Cluster] = Cluster, **arguments: Any) -> Cluster:
        clusters.append(kind(monkeypatch, opts, **arguments))
        return clusters[-1]

    yield start_cluster
    monkeypatch.undo()
    for cluster in clusters:
        cluster.close()
