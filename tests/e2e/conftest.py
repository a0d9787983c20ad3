"""Fixtures of the real stack: the quick start's model and data, made once a session, whatever its processes."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock

from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.supervision import vllm_inspects

from ..support import verl_imported  # noqa: F401 (before tests that import verl)


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Assets:
    own = tmp_path_factory.getbasetemp()
    parent = Path(own if worker_id == "master" else own.parent, "assets")
    with FileLock(f"{parent}.lock"):
        return prepare_assets(parent, seed=0, beside=vllm_inspects("Qwen3ForCausalLM"))


@pytest.fixture(scope="module", autouse=True)
def lane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """One training in each; a file marked `alone` takes them all, and so waits for the others, and they for it."""
    if worker_id == "master":
        yield
        return
    parent, count = tmp_path_factory.getbasetemp().parent, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    own = int(worker_id.removeprefix("gw")) % count
    taken = range(count) if request.node.get_closest_marker("alone") else [own]
    with ExitStack() as locks:
        for number in taken:
            locks.enter_context(FileLock(parent / f"lane-{number}.lock"))
        yield
