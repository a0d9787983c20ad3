"""Extensions that a benchmark measures, and that the copy it runs in may lack."""

import sys

from recipe.async_dapo.config.extensions import declared


def need(*names: str) -> None:
    """End the command, naming what is not there, before anything runs."""
    if absent := [f"extensions/{name}" for name in names if name not in declared()]:
        sys.exit(f"this benchmark measures {' and '.join(absent)}, which this copy lacks; copy what is missing, too")
