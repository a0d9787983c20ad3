"""Checks a run before it is started: `python -m recipe.async_dapo.check KEY=VALUE ...`; exit status 1 if it is bad.

Give it what the run is given: its overrides, and --config-dir and --config-name where it has a yaml of its own. The
checks are those of every start. All of them run, so that several mistakes are found at once; Ray does not.
"""

import sys
from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from .config.extensions import not_in_copy, of_copy


def main(
    arguments: Sequence[str],
    describe: Callable[[DictConfig], str] = lambda config: "",
    base: Sequence[str] = (),
) -> int:
    """Check, and print a line for each check.

    Args:
        describe: what to say of a run that is in order.
        base: overrides before the arguments, for options that the recipe's yaml does not have.

    Returns:
        The exit status: 0 good, 1 bad, 2 for what is no override, and where this copy has no such command.
    """
    command = of_copy("command")
    if command is None:
        sys.stderr.write(f"async_dapo: {not_in_copy('checks', 'start the run: it checks what this copy knows')}\n")
        return 2
    status: int = command(arguments, describe=describe, base=base, usage=f"{__doc__}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
