"""vLLM's look at a model class: once a machine, in a process that imports all of vLLM. Its result is kept on disk."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .activation import cpu_environment

_INSPECT = "import sys; from vllm import ModelRegistry; ModelRegistry.models[sys.argv[1]].inspect_model_cls()"


@contextmanager
def vllm_inspects(architecture: str) -> Iterator[None]:
    """Takes the look while the context is open, so that no engine has to wait for it; an engine that must, does."""
    process = subprocess.Popen(
        [sys.executable, "-c", _INSPECT, architecture],
        env=cpu_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it starts a process of its own: both are ended
    )
    try:
        yield
        process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
