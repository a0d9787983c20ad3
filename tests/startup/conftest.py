from ..support import verl_imported  # noqa: F401, I001 (first of all)

from pathlib import Path

import datasets
import pytest
from omegaconf import DictConfig

from ..support.composed_runs import ComposeRun, compose_run, valid_overrides, write_files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def run(files: Path) -> ComposeRun:
    """Composes the valid run with further overrides."""

    def with_overrides(*overrides: str) -> DictConfig:
        return compose_run([*valid_overrides(files), *overrides])

    return with_overrides


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """verl announces at every check that GRPO needs no critic."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:Disabled critic"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What `datasets` keeps of the files that are checked."""
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")


@pytest.fixture(autouse=True)
def no_cluster():
    yield
    import ray

    assert not ray.is_initialized(), "start-up checks must not start Ray"
