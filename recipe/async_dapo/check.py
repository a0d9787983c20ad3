"""Checks a run before it is started: `python -m recipe.async_dapo.check <hydra overrides>`; exit status 1 if it is bad.

The checks are those of every start. All of them run, so that several mistakes are found at once; Ray does not.
"""

import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO

from omegaconf import DictConfig

from .config.values import ConfigError
from .startup.overrides import compose_overrides
from .startup.preflight import Finding, findings

WIDTH = 110


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
        The exit status: 0 good, 1 bad, 2 for what is no override.
    """
    began_s = time.perf_counter()
    if flags := [argument for argument in arguments if argument.startswith("-")]:
        _say(f"{__doc__}")
        return 0 if set(flags) <= {"-h", "--help"} else 2
    try:
        config = compose_overrides(arguments, base)
    except ConfigError as error:
        _show(Finding(name="overrides", error=error))
        return 1
    failed = 0
    for finding in _quietly(findings(config)):
        _show(finding)
        failed += finding.error is not None
    spent = f"{time.perf_counter() - began_s:.1f} s"
    if failed:
        _say(f"\n{failed} of the checks failed ({spent}); each line says what to do.")
        return 1
    try:
        words = describe(config)
    except ConfigError as error:
        _show(Finding(name="in words", error=error))
        return 1
    if words:
        _say(f"\n{textwrap.fill(words, WIDTH)}")
    _say(f"\nEverything is in order ({spent}).")
    return 0


def _quietly(checks: Iterator[Finding]) -> Iterator[Finding]:
    """What verl prints and warns of while it is asked is left out."""
    while True:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            finding = next(checks, None)
        if finding is None:
            return
        yield finding


def _show(finding: Finding) -> None:
    sign = "ok  " if finding.error is None else "BAD "
    what = finding.note if finding.error is None else str(finding.error)
    _say(f"{sign} {finding.name:<22} {what}".rstrip())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
