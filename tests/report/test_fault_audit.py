"""The audit of the fault matrix sees prompts that are lost or trained twice, over any number of restarts."""

import random

from benchmarks.faults.audit import Note, audit
from benchmarks.faults.growth import Growth


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


def test_given_processes_that_grow_then_the_slope_of_the_longest_life_is_told_without_its_start() -> None:
    growth = Growth()
    for s in range(0, 121, 5):
        imports_mb = 500.0 * (s < 20)
        growth.samples.append({"part": "driver", "pid": 1, "s": float(s), "mb": imports_mb + s / 60, "descriptors": 7})
    for s in range(0, 101, 5):  # a shorter life, that grows faster
        growth.samples.append({"part": "driver", "pid": 2, "s": float(s), "mb": s / 6, "descriptors": 7})
    [row] = growth.table().to_dict("records")
    assert (row["part"], row["processes"], row["mb_per_minute"], row["descriptors_per_minute"]) == (
        "driver",
        2,
        1.0,
        0.0,
    )
    assert Growth().table().empty
