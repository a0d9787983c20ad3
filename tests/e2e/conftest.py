"""Fixtures of the real stack: the quick start's model and data, made once a session."""

import pytest

from recipe.async_dapo.cpu.model_and_data import Assets, prepare_assets


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    return prepare_assets(tmp_path_factory.mktemp("assets"), seed=0)
