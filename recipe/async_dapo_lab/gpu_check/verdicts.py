"""What a check found: a line on the terminal, a row of the table, an entry of `gpu_check.json`."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

FILE = "gpu_check.json"


class Status(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"

    @property
    def coloured(self) -> str:
        return f"[{_COLOURS[self]}]{self}[/]"


_COLOURS = {Status.PASS: "green", Status.FAIL: "bold red", Status.SKIP: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    status: Status
    found: str
    remedy: str = ""  # what to do; of a failure only

    @property
    def is_failure(self) -> bool:
        return self.status is Status.FAIL


def passed(found: str) -> Verdict:
    return Verdict(status=Status.PASS, found=found)


def failed(found: str, remedy: str) -> Verdict:
    return Verdict(status=Status.FAIL, found=found, remedy=remedy)


def skipped(why: str) -> Verdict:
    return Verdict(status=Status.SKIP, found=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    theme: str
    check: str
    status: Status
    seconds: float
    found: str
    remedy: str
    measured: dict[str, Any]  # figures, by name


@dataclass(slots=True, kw_only=True)
class Results:
    """All results of a run of the command, told as they come."""

    console: Console
    all: list[Result] = field(default_factory=list)
    _theme: str = ""

    def begin(self, theme: str) -> None:
        self._theme = theme
        self._tell(f"[bold]{escape(theme)}[/]")

    def add(
        self, check: str, verdict: Verdict, *, seconds: float = 0.0, measured: dict[str, Any] | None = None
    ) -> None:
        result = Result(
            theme=self._theme,
            check=check,
            status=verdict.status,
            seconds=round(seconds, 3),
            found=verdict.found,
            remedy=verdict.remedy,
            measured=measured or {},
        )
        self.all.append(result)
        self._tell(f"{result.status.coloured} {escape(check):<28} {seconds:7.1f} s  {escape(result.found)}")
        if result.remedy:
            self.note(f"remedy: {result.remedy}")

    def note(self, words: str) -> None:
        self._tell(f"     {escape(words)}")

    def _tell(self, marked_up: str) -> None:
        self.console.print(marked_up, highlight=False, soft_wrap=True)

    def count(self, status: Status) -> int:
        return sum(result.status is status for result in self.all)

    @property
    def exit_code(self) -> int:
        return 1 if self.count(Status.FAIL) else 0

    def finish(self, folder: Path, *, about: dict[str, Any]) -> None:
        """Write the file and show the table.

        Args:
            about: what was checked: hardware, versions, date, seconds.
        """
        counts = {str(status): self.count(status) for status in Status}
        content = {**about, "counts": counts, "checks": [asdict(result) for result in self.all]}
        (folder / FILE).write_text(json.dumps(content, indent=2) + "\n")
        table = Table(title="gpu_check", title_justify="left")
        for column in ("", "Theme", "Check", "Seconds", "Found"):
            table.add_column(column, justify="right" if column == "Seconds" else "left")
        for one in self.all:
            row = (one.theme, one.check, f"{one.seconds:.1f}", one.found)
            table.add_row(one.status.coloured, *map(escape, row))
        self.console.print(table)
        said = ", ".join(f"{count} {status}" for status, count in counts.items())
        self._tell(escape(f"{said} in {about['seconds']:.0f} s; {folder / FILE}"))
