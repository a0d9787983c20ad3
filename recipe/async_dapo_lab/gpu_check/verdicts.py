"""What a check found: a line on the terminal as it comes, and an entry of `gpu_check.json`."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

FILE = "gpu_check.json"


class Status(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


_COLOURS = {Status.PASS: "green", Status.FAIL: "bold red", Status.SKIP: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    status: Status
    found: str
    remedy: str = ""  # what to do about a failure

    @property
    def is_failure(self) -> bool:
        return self.status is Status.FAIL


def passed(found: str) -> Verdict:
    return Verdict(status=Status.PASS, found=found)


def failed(found: str, remedy: str) -> Verdict:
    return Verdict(status=Status.FAIL, found=found, remedy=remedy)


def skipped(why: str) -> Verdict:
    return Verdict(status=Status.SKIP, found=why)


def first_failure(*needs: tuple[bool, str, str], else_found: str) -> Verdict:
    """
    Args:
        needs: what must hold, the words if it does not, and the remedy.
        else_found: what is said if all of them hold.
    """
    return next((failed(words, remedy) for holds, words, remedy in needs if not holds), passed(else_found))


@dataclass(slots=True, kw_only=True)
class Results:
    """All results of a run of the command. Each is told as it comes."""

    console: Console = field(default_factory=Console)
    checks: list[dict[str, Any]] = field(default_factory=list)
    _theme: str = ""

    def begin(self, theme: str) -> None:
        self._theme = theme
        self._tell(f"[bold]{escape(theme)}[/]")

    def add(
        self, check: str, verdict: Verdict, *, seconds: float = 0.0, measured: dict[str, Any] | None = None
    ) -> None:
        status, found, remedy = verdict.status, verdict.found, verdict.remedy
        said = {"theme": self._theme, "check": str(check), "status": str(status), "seconds": round(seconds, 3)}
        self.checks.append(said | {"found": found, "remedy": remedy, "measured": measured or {}})
        self._tell(f"[{_COLOURS[status]}]{status}[/] {escape(check):<28} {seconds:7.1f} s  {escape(found)}")
        if remedy:
            self.note(f"remedy: {remedy}")

    def note(self, words: str) -> None:
        self._tell(f"     {escape(words)}")

    def _tell(self, marked_up: str) -> None:
        self.console.print(marked_up, highlight=False, soft_wrap=True)

    def finish(self, folder: Path, *, about: dict[str, Any]) -> int:
        """Write the file, tell the counts, and return the exit status.

        Args:
            about: what was checked: hardware, versions, date, seconds.
        """
        counts = {str(status): sum(check["status"] == status for check in self.checks) for status in Status}
        (folder / FILE).write_text(json.dumps({**about, "counts": counts, "checks": self.checks}, indent=2) + "\n")
        said = ", ".join(f"{count} {status}" for status, count in counts.items())
        self._tell(escape(f"{said} in {about['seconds']:.0f} s; {folder / FILE}"))
        return 1 if counts[Status.FAIL] else 0
