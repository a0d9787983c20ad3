"""Functions in a process of their own, which need not import again what this one has imported."""

import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def in_a_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns in a process that ends with it."""
    with ProcessPoolExecutor(1, get_context("fork"), initializer=warnings.simplefilter, initargs=("ignore",)) as own:
        return own.submit(function, *arguments).result()
