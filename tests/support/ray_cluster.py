"""A small Ray of one's own, in a short folder, that leaves nothing behind. Its actors' processes are forks."""

import gc
import os
import shlex
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from recipe.async_dapo_lab.quickstart.activation import SMALL_RAY, cpu_environment

from .fork_server import executable

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def local_ray() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="r")
    environment = cpu_environment(os.environ, code_path=REPOSITORY)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL_RAY.items():
            patch.setenv(name, value)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env={
                "env_vars": {name: environment[name] for name in ("PYTHONPATH", "VERL_PLATFORM")},
                "py_executable": shlex.quote(executable()),
            },
        )
    try:
        yield
    finally:
        ray.shutdown()
        with warnings.catch_warnings():  # Ray leaves its processes to the garbage collector
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        deadline = time.monotonic() + 10
        while os.path.exists(folder) and time.monotonic() < deadline:  # its processes write until they are gone
            shutil.rmtree(folder, ignore_errors=True)
