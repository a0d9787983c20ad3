"""A hub of data sets on this machine, and the script that downloads from it."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ..support.fake_hub import Hub, published_rows, running_hub
from ..support.prepare_runner import Runner


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def prepare(tmp_path: Path, hub: Hub) -> Iterator[Runner]:
    """One published file, train.parquet: 5 prompts, each 3 times."""
    pins = tmp_path / "pins.txt"
    pins.write_text(hub.publish("train.parquet", pa.Table.from_pylist(published_rows(prompts=5, copies=3)), prompts=5))
    runner = Runner(tmp_path / "data home", hub, pins)
    yield runner
    runner.kill_all()


@pytest.fixture
def body(hub: Hub, prepare: Runner) -> bytes:
    """The published file."""
    return next(iter(hub.files.values()))
