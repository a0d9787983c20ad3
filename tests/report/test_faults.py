"""The fault matrix sees prompts that are lost or trained twice, over any number of restarts; it tells a driver that was
killed from a run that ended by itself."""

import random

from benchmarks.faults.audit import Note, audit


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
