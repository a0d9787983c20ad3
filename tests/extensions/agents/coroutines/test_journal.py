"""What a checkpoint keeps of calls and kept loops: it comes back whole, and says when it needs this extension."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.ledger import Ledger
from recipe.async_dapo.core.pool import PoolState
from recipe.async_dapo.core.trajectory import PromptGroup, Suspension, Trajectory
from recipe.async_dapo.extensions.agents import journal as module
from recipe.async_dapo.extensions.agents.journal import Call, Journal, from_bytes
from recipe.async_dapo.record.checkpoint_folder import DamagedCheckpoint
from recipe.async_dapo.training.checkpoints import RolloutState, from_frames, to_frames

from ....support.rollout_world import reread
from ....support.texts import any_text

COUNT = st.integers(0, 2**40)
CALLS = st.builds(Call, call_id=any_text(), turn=COUNT, arguments=st.binary(), result=st.none() | st.binary())
JOURNALS = st.builds(
    Journal,
    calls=st.lists(CALLS, max_size=3).map(lambda calls: {call.call_id: call for call in calls}),
    is_replayable=st.booleans(),
)


def group(journal: Journal) -> PromptGroup:
    trajectories = [Trajectory(session_id=0, attachment=journal), Trajectory(session_id=1)]
    return PromptGroup(uid="g", prompt={}, drawn_at_step=1, trajectories=trajectories)


def state(journal: Journal) -> RolloutState:
    pool = PoolState(waiting=(), buffered=(group(journal),), carried=(), ledger=Ledger())
    return RolloutState(pool=pool, extensions={"history": b"x"})


@given(journal=JOURNALS)
def test_given_any_journal_when_saved_and_read_then_it_is_what_it_was_and_may_have_gone_on_after_it(journal) -> None:
    read = reread(group(replace(journal, suspension=Suspension(worker=0, name="0-0"))))
    assert read == group(journal), "its loop has ended with its process"
    assert all(trajectory.is_restored for trajectory in read.trajectories), "begun before it or not"


@given(journal=JOURNALS, data=st.data())
def test_given_a_journal_when_a_byte_is_changed_then_it_is_read_or_refused(journal, data) -> None:
    changed = bytearray(journal.to_bytes())
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        reread(group(SimpleNamespace(to_bytes=lambda: bytes(changed))))  # type: ignore[arg-type]
    except DamagedCheckpoint:
        pass


def test_given_bytes_of_this_format_when_read_and_saved_again_then_they_are_the_same() -> None:
    """What fails here is another format: raise `FORMAT` of `record/checkpoint_folder.py`."""
    saved = b"\xc2\x92\x94\xaeg/0/1/pay/ab/0\x01\xc4\x01a\xc4\x01r\x94\xb4g/0/0/reward/d/score\x02\xc4\x00\xc0"
    saved = b"\x92" + saved
    journal = from_bytes(saved)
    assert journal.to_bytes() == saved
    pay, score = journal.calls.values()
    assert (pay.name, pay.turn, pay.arguments, pay.result) == ("pay", 1, b"a", b"r")
    assert score.is_score and score.result is None and not journal.is_replayable


def test_given_recorded_calls_or_a_loop_that_is_gone_when_saved_then_only_a_copy_with_agents_goes_on() -> None:
    def needed(*calls: Call, is_replayable: bool = True) -> tuple[str, ...]:
        journal = Journal(calls={call.call_id: call for call in calls}, is_replayable=is_replayable)
        return state(journal).needed_extensions

    call = Call(call_id="g/0/1/pay/d/0", turn=1, arguments=b"")
    assert needed() == ("history",)
    score = Call(call_id="g/0/0/reward/d/score", turn=1, arguments=b"")  # it is made again, as any copy does
    assert needed(score) == ("history",)
    for turn in (0, 1):  # of a loop that asks side by side the ids name no turn
        of_its_name = Call(call_id=f"g/0/{turn}/reward/d/0", turn=1, arguments=b"")
        assert needed(score, of_its_name) == ("history", "agents")
    assert needed(call) == needed(is_replayable=False) == ("history", "agents")


def test_given_calls_that_go_on_when_saved_then_those_that_have_arrived_have_their_results(monkeypatch) -> None:
    def wait(references: list[str], **_: Any) -> tuple[list[str], list[str]]:
        return [one for one in references if one == "here"], []

    get: Callable[..., bytes] = lambda reference, timeout: b"result"  # noqa: E731
    monkeypatch.setattr(module, "ray", SimpleNamespace(wait=wait, get=get))
    calls = [Call(call_id=f"g/0/1/{one}/d/0", turn=1, arguments=b"", pending=one) for one in ("here", "on its way")]
    saved = Journal(calls={call.call_id: call for call in calls}).to_bytes()
    assert [call.result for call in from_bytes(saved).calls.values()] == [b"result", None]


@pytest.mark.parametrize("has_calls", [True, False])
def test_given_a_loop_that_rests_then_its_trajectory_has_something_to_lose(has_calls) -> None:
    trajectory = Trajectory(session_id=0)
    assert not trajectory.has_started and not Journal.of(trajectory).has_begun and not trajectory.has_started
    if has_calls:
        Journal.of(trajectory).calls["g/0/1/pay/d/0"] = Call(call_id="g/0/1/pay/d/0", turn=1, arguments=b"")
    else:
        Journal.of(trajectory).suspension = Suspension(worker=0, name="0-0")
    assert trajectory.has_started
    assert [from_frames(to_frames(state(Journal.of(trajectory)))).pool.buffered[0].has_started] == [has_calls]
