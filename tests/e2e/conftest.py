"""Fixtures of the real stack: the quick start's model and data, made once a session, whatever its processes."""

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
