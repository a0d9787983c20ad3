"""What a check found, as a line, a row of the table and an entry of `gpu_check.json`."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

FILE = "gpu_check.json"
_COLOURS = {"PASS": "green", "FAIL": "bold red", "SKIP": "yellow"}


class Status(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


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

    @contextmanager
    def theme(self, name: str) -> Iterator[None]:
        self._theme = name
        self.console.print(f"[bold]{escape(name)}[/]", highlight=False)
        yield

    def timed(self, check: str, judge: Callable[[], Verdict]) -> Verdict:
        """Make a judgement that needs no process of its own, and note how long it took."""
        began_s = time.perf_counter()
        verdict = judge()
        self.add(check, verdict, seconds=time.perf_counter() - began_s)
        return verdict

    def add(self, check: str, verdict: Verdict, *, seconds: float, measured: dict[str, Any] | None = None) -> None:
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
        colour = _COLOURS[result.status]
        self.console.print(
            f"[{colour}]{result.status}[/] {escape(check):<28} {seconds:7.1f} s  {escape(result.found)}",
            highlight=False,
            soft_wrap=True,
        )
        if result.remedy:
            self.console.print(f"     {escape(result.remedy)}", highlight=False, soft_wrap=True)

    def note(self, words: str) -> None:
        self.console.print(f"     {escape(words)}", highlight=False, soft_wrap=True)

    def count(self, status: Status) -> int:
        return sum(result.status is status for result in self.all)

    @property
    def exit_code(self) -> int:
        return 1 if self.count(Status.FAIL) else 0

    def _table(self) -> Table:
        table = Table(title="gpu_check", title_justify="left")
        for column in ("", "Theme", "Check", "Seconds", "Found"):
            table.add_column(column, justify="right" if column == "Seconds" else "left")
        for one in self.all:
            colour = _COLOURS[one.status]
            cells = (escape(one.theme), escape(one.check), f"{one.seconds:.1f}", escape(one.found))
            table.add_row(f"[{colour}]{one.status}[/]", *cells)
        return table

    def show_table(self, file: Path, *, seconds: float) -> None:
        self.console.print(self._table())
        counts = ", ".join(f"{self.count(status)} {status}" for status in Status)
        self.console.print(f"{counts} in {seconds:.0f} s; {file}", highlight=False, markup=False, soft_wrap=True)

    def write(self, folder: Path, *, about: dict[str, Any]) -> Path:
        """
        Args:
            about: what was checked: hardware, versions, date, options.
        """
        counts = {str(status): self.count(status) for status in Status}
        content = {**about, "counts": counts, "checks": [asdict(result) for result in self.all]}
        file = folder / FILE
        file.write_text(json.dumps(content, indent=2) + "\n")
        return file
