"""A chain of lives: a run is struck, ends or goes on, is started again, and is struck again.

A cell's row is complete when the run has finished a step after it, in the same life or in the next one, and a note at a
checkpoint has told what became of its prompts.
"""

import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .audit import Audit, Note, audit, read
from .cells import KILL, Cell
from .life import GRACE_S, Life
from .victims import DRIVER, named_in

LIMIT_S = 150.0  # who has not gone on or ended by then hangs
START_LIMIT_S = 420.0  # of a life to its first moment, on a busy machine

Row = dict[str, Any]
Command = Callable[[Path], list[str]]  # the overrides of a life; its argument is the run's folder


class Chain:
    """Plays cells, one after the other, on one run.

    Args:
        command: makes the overrides, given the folder that all lives share.
        folder: for logs and checkpoints.
        add: takes a complete row.
        life: what runs the command: on one Ray node, or on two.
    """

    def __init__(
        self,
        stack: str,
        command: Command,
        folder: Path,
        *,
        seed: int,
        add: Callable[[Mapping[str, Any]], None],
        life: type[Life] = Life,
    ) -> None:
        self._stack, self._command, self._folder, self._seed, self._add = stack, command, folder, seed, add
        self._kind = life
        self._notes = folder / "notes.jsonl"
        self._unresumed: list[Row] = []
        self._known = Audit(steps=0, trained=0, lost=0, twice=0)
        self._number = 0

    def play(self, cells: Iterable[Cell]) -> None:
        left = deque(cells)
        while left or self._unresumed:
            self._number += 1
            with self._new_life() as life:
                self._live(life, left)

    @contextmanager
    def _new_life(self) -> Iterator[Life]:
        """Its log stays; its other files lie in a folder with a short path."""
        short = Path(tempfile.mkdtemp(prefix="f"))
        try:
            with self._kind(
                self._command(self._folder), short, number=self._number, stack=self._stack, notes=self._notes
            ) as life:
                yield life
        finally:
            for kept in ("train.log", "metrics.jsonl"):
                if (short / kept).exists():
                    shutil.copy(short / kept, self._folder / f"{self._number}-{kept}")
            shutil.rmtree(short, ignore_errors=True)

    def _live(self, life: Life, left: deque[Cell]) -> None:
        """Until the life ends, or nothing is left to do in it."""
        while left or self._unresumed:
            if self._unresumed and not self._await_resume(life, left):
                return
            if not left or life.has_passed(left[0].when):
                return
            cell = left.popleft()
            life.arm(cell, cell.delay_s(self._seed))
            row = self._await_outcome(life, cell)
            if row["outcome"] == "continued":
                self._complete(row | {"resumed_s": ""})
            else:
                self._unresumed.append(row)
            if row["outcome"] != "continued" or cell.how == KILL:  # an engine that was killed is back in the next life
                return

    def _await_resume(self, life: Life, left: deque[Cell]) -> bool:
        """Until a step of this life is finished, or it is the next cell's turn, which comes once in a life."""
        if left and not life.has_passed(left[0].when) and left[0].when.is_once:
            return True
        resumed_s: float | None = None
        while resumed_s is None or not self._has_note_of(self._number):
            life.look()
            if resumed_s is None and life.metrics.trained_steps:
                resumed_s = time.monotonic() - life.started
            if life.has_ended or time.monotonic() - life.started > START_LIMIT_S:
                for row in self._unresumed:
                    self._complete(row | {"resumed_s": "never", "cause": f"{row['cause']} | {life.last_line()}"})
                self._unresumed.clear()
                return False
        for row in self._unresumed:
            self._complete(row | {"resumed_s": round(resumed_s, 1)})
        self._unresumed.clear()
        return True

    def _await_outcome(self, life: Life, cell: Cell) -> Row:
        while True:
            life.look()
            has_ended = life.has_ended  # asked first: a strike is known before its effect
            if (strike := life.strike) is not None:
                break
            if has_ended or (not life.metrics.trained_steps and time.monotonic() - life.started > START_LIMIT_S):
                return self._row(cell, outcome="not struck", seconds=0.0, life=life)
        first_step: float | None = None
        notes_before = len(self._notes_so_far())
        while True:
            life.look()
            now = time.monotonic()
            if not strike.pids:
                return self._row(cell, outcome="not struck", seconds=0.0, life=life)
            if life.has_ended:
                return self._row(cell, outcome="ended", seconds=now - strike.at, life=life)
            finished = life.metrics.trained_steps - strike.steps_before
            if not strike.done.is_set():
                strike.steps_before = life.metrics.trained_steps
                notes_before = len(self._notes_so_far())
                continue
            if finished and first_step is None:
                first_step = now
            if finished >= 2 and first_step is not None and len(self._notes_so_far()) > notes_before:
                return self._row(cell, outcome="continued", seconds=first_step - strike.at)
            if now - strike.at > LIMIT_S:
                return self._row(cell, outcome="hung", seconds=now - strike.at, life=life)

    def _row(self, cell: Cell, *, outcome: str, seconds: float, life: Life | None = None) -> Row:
        row: Row = cell.name | {"delay_s": round(cell.delay_s(self._seed), 3), "outcome": outcome}
        row |= {"seconds": round(seconds, 1), "named": "", "cause": ""}
        left: dict[str, Any] = dict.fromkeys(("processes", "sockets", "shared_memory", "folders", "still_there"), "")
        if life is not None:
            if outcome == "hung":
                life.end()
            since = time.monotonic()
            found = life.await_processes()
            names = [*found.processes, *found.shared_memory]
            left = asdict(found) | {"processes": len(found.processes), "shared_memory": len(found.shared_memory)}
            left["still_there"] = re.sub(r"\S*/", "", ", ".join(names))[:300]  # without this machine's folders
            line = life.last_line()
            row["cause"] = line.removeprefix("async_dapo: ")[:300]
            if cell.who == DRIVER and cell.how == KILL:  # nobody is left to name anything
                row["seconds"] = round(seconds + min(time.monotonic() - since, GRACE_S), 1)
            else:
                row["named"] = "yes" if named_in(cell.who, line) else "no"
        return row | left

    def _notes_so_far(self) -> list[Note]:
        return read(self._notes.read_text().split("\n")[:-1]) if self._notes.exists() else []

    def _has_note_of(self, life: int) -> bool:
        return any(note.life == life for note in self._notes_so_far())

    def _complete(self, row: Row) -> None:
        """With what the notes say by now."""
        notes = self._notes_so_far()
        now = audit(notes) if notes else self._known
        row |= {"steps": now.steps, "lost": now.lost - self._known.lost, "twice": now.twice - self._known.twice}
        self._known = now
        self._add(row)
