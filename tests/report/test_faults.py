"""The fault matrix sees prompts that are lost or trained twice, over any number of restarts; it tells a driver that was
killed from a run that ended by itself."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil

from benchmarks.faults.audit import Note, audit
from benchmarks.faults.cells import Cell, Moment, Stack
from benchmarks.faults.chain import Chain
from benchmarks.faults.life import LeftOver, Strike, still_there


def note(step: int, drawn: str, trained: str, *, ended: str = "", held: str = "", life: int = 1) -> Note:
    """Prompts are letters."""
    return Note(life=life, step=step, drawn=tuple(drawn), trained=tuple(trained), ended=tuple(ended), held=tuple(held))


def test_given_steps_that_are_done_again_after_a_restart_then_they_count_once() -> None:
    notes = [
        note(1, "abcd", "ab", held="cd"),
        note(2, "ef", "cd", ended="e", held="f"),
        note(2, "ef", "ce", held="df", life=2),
        note(3, "g", "df", held="g", life=2),
    ]
    found = audit(notes)
    assert (found.steps, found.trained, found.lost, found.twice) == (3, 6, 0, 0)


def test_given_a_prompt_that_vanishes_or_is_trained_again_then_it_is_found() -> None:
    kept = note(1, "abcd", "ab", held="cd")
    assert audit([kept, note(2, "e", "c", held="e")]).lost == 1
    assert audit([kept, note(2, "e", "ac", held="de")]).twice == 1
    assert audit([kept, note(2, "e", "cd", held="ee")]).twice == 1


def test_given_a_loader_that_goes_on_elsewhere_after_a_restart_then_what_it_skipped_is_lost() -> None:
    begun = [note(1, "ab", "ab"), note(2, "cd", "cd")]
    assert audit([*begun, note(2, "ef", "ef", life=2)]).lost == 2
    assert audit([*begun, note(2, "cde", "cd", held="e", life=2)]).lost == 0


def test_given_further_epochs_then_a_prompt_may_be_trained_as_often_as_it_was_drawn() -> None:
    rng = random.Random(0)
    notes, held = [], ""
    for step in range(1, 40):
        drawn = "".join(rng.choices("abcdefgh", k=4))
        at_hand = held + drawn
        held = at_hand[4:]
        notes.append(note(step, drawn, at_hand[:2], ended=at_hand[2:4], held=held))
    assert (audit(notes).lost, audit(notes).twice) == (0, 0)


CELL = Cell(stack=Stack.EMULATED, who="driver", when=Moment.SAVE)


class EndingLife:
    """Ends while it is looked at, by a strike or by itself."""

    def __init__(self, strike: Strike | None) -> None:
        self.strike: Strike | None = None
        self.has_ended = False
        self.started = 0.0
        self.metrics = SimpleNamespace(trained_steps=3)
        self._strike = strike

    def look(self) -> None:
        self.strike, self.has_ended = self._strike, True

    def await_processes(self) -> LeftOver:
        return LeftOver(processes=(), sockets=0, shared_memory=(), folders=0)

    def last_line(self) -> str:
        return ""


def outcome(life: EndingLife, folder: Path) -> str:
    chain = Chain(Stack.EMULATED, lambda _: [], folder, seed=0, add=lambda row: None)
    return chain._await_outcome(life, CELL)["outcome"]


def test_given_a_strike_that_ends_the_run_between_two_looks_then_the_cell_has_ended(tmp_path: Path) -> None:
    assert outcome(EndingLife(Strike(cell=CELL, pids=[1])), tmp_path) == "ended"


def test_given_a_run_that_ends_by_itself_then_the_cell_was_not_struck(tmp_path: Path) -> None:
    assert outcome(EndingLife(None), tmp_path) == "not struck"
    assert outcome(EndingLife(Strike(cell=CELL, pids=[])), tmp_path) == "not struck"


def test_given_a_process_that_is_seen_when_another_has_ended_then_it_is_waited_for_too() -> None:
    first, second = (start(f"time.sleep({seconds})") for seconds in (0.1, 0.5))
    looks = iter([[first], [second], []])
    assert still_there(lambda: next(looks), after_s=60.0) == ()
    assert not second.is_running()


def test_given_a_process_that_stays_then_it_is_named() -> None:
    staying = start("time.sleep(600)")
    assert ["time.sleep(600)" in title for title in still_there(lambda: [staying], after_s=0.2)] == [True]
    staying.kill()
    staying.wait()


def start(code: str) -> psutil.Popen:
    return psutil.Popen([sys.executable, "-c", f"import time; {code}"])
