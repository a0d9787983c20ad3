"""Checks a run before it is started: `python -m recipe.async_dapo.check KEY=VALUE ...`; exit status 1 if it is bad.

Give it what the run is given: its overrides, and --config-dir and --config-name where it has a yaml of its own. The
checks are those of every start. All of them run, so that several mistakes are found at once; Ray does not.
"""

import logging
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO

from omegaconf import DictConfig

from .config.values import ConfigError
from .startup.overrides import CommandLine, compose_what_is_right
from .startup.preflight import LEFT_OUT, OPTIONS, Finding, findings

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
    if not arguments or {"-h", "--help"} & set(arguments):
        _say(f"{__doc__}")
        return 0 if arguments else 2
    try:
        line = CommandLine.of(arguments)
        _refuse_flags(line)
    except ConfigError as error:
        _show(Finding(name="command line", error=error))
        return 2
    with quiet():
        config, errors = compose_what_is_right(replace(line, overrides=(*base, *line.overrides)))
    for wrong in errors:
        _show(Finding(name="overrides", error=wrong))
    failed, last = len(errors), ""
    for finding in _quietly(findings(config)) if config is not None else ():
        _show(finding)
        failed += finding.error is not None
        last = finding.name
    if last in ("", OPTIONS):
        _say("The other checks need right options: correct these, and check again.")
    spent = f"{time.perf_counter() - began_s:.1f} s"
    if failed or config is None:
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


def _refuse_flags(line: CommandLine) -> None:
    for flag in line.others:
        if flag in ("-m", "--multirun"):
            raise ConfigError(flag, "<given>", "trains several runs, one after the other; check one of them at a time")
        raise ConfigError(flag, "<given>", "is no flag of check; it takes --config-dir and --config-name")


@contextmanager
def quiet() -> Iterator[None]:
    """What verl prints, logs and warns of while it is asked is left out."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _quietly(checks: Iterator[Finding]) -> Iterator[Finding]:
    while True:
        with quiet():
            finding = next(checks, None)
        if finding is None:
            return
        yield finding


def _show(finding: Finding) -> None:
    sign = "BAD " if finding.error is not None else "--  " if finding.note.startswith(LEFT_OUT) else "ok  "
    what = finding.note if finding.error is None else str(finding.error)
    _say(f"{sign} {finding.name:<22} {what}".rstrip())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
