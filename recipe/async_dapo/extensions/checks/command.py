"""The command `python -m recipe.async_dapo.check`: runs all checks of a start, and says a line of each."""

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from omegaconf import DictConfig

from ...config.values import ConfigError
from ...runtime.logs import quiet
from ...startup.overrides import CommandLine, compose_what_is_right
from ...startup.preflight import LEFT_OUT, OPTIONS, Finding, findings

WIDTH = 110


def run(arguments: Sequence[str], *, describe: Callable[[DictConfig], str], base: Sequence[str], usage: str) -> int:
    """As `main` of `check.py`.

    Args:
        usage: what it says when asked for help.
    """
    began_s = time.perf_counter()
    if not arguments or {"-h", "--help"} & set(arguments):
        _say(usage)
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
