"""The journal of calls: what is answered from it, what is dropped, and what a call is called."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.calls import Recorder, append_tokens
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory


def recorder(trajectory: Trajectory) -> Recorder:
    return Recorder(trajectory=trajectory, prompt_uid="group")


def turn(it: Recorder, prompt: int, token: int) -> None:
    one = it.begin_turn([prompt])
    if one.finish_reason is None:
        append_tokens(one, [token], [0.0], [(0, 1)])
        one.finish_reason = "stop"


def ids(it: Recorder, names: list[str]) -> list[str]:
    return [it.begin_call(name, b"arguments")[0].call_id for name in names]


@given(st.lists(st.sampled_from("abc"), max_size=8), st.randoms())
def test_given_calls_of_one_turn_when_they_overtake_each_other_then_each_finds_its_own(names, random) -> None:
    trajectory = Trajectory(session_id=0)
    first = ids(recorder(trajectory), names)
    assert len(set(first)) == len(names) == len(trajectory.calls)
    again = recorder(trajectory)
    assert sorted(ids(again, random.sample(names, len(names)))) == sorted(first)
    assert len(trajectory.calls) == len(names)


def test_given_other_tokens_before_it_then_a_call_is_another_one() -> None:
    made = set()
    for token, arguments in [(1, b"a"), (2, b"a"), (1, b"b")]:
        it = recorder(Trajectory(session_id=0))
        turn(it, prompt=5, token=token)
        made.add(it.begin_call("tool", arguments)[0].call_id)
    assert len(made) == 3


def test_given_a_loop_that_takes_another_way_then_later_calls_are_dropped_and_counted_and_earlier_ones_stay() -> None:
    trajectory = Trajectory(session_id=0)
    it = recorder(trajectory)
    before = ids(it, ["reset"])
    turn(it, prompt=1, token=7)
    between = ids(it, ["tool"])
    turn(it, prompt=2, token=8)
    ids(it, ["tool"])
    again = recorder(trajectory)
    turn(again, prompt=1, token=7)
    turn(again, prompt=3, token=9)
    assert list(trajectory.calls) == before + between
    assert again.calls.diverged == 1 and again.diverged_tok == 1


def test_given_a_parked_trajectory_then_its_calls_count_and_weigh_nothing() -> None:
    trajectory = Trajectory(session_id=0)
    call, is_new = recorder(trajectory).begin_call("reset", b"arguments")
    call.result = b"result"
    assert is_new and trajectory.journal_bytes == len(b"argumentsresult")
    group = PromptGroup(uid="group", prompt={}, drawn_at_step=1, trajectories=[trajectory])
    group.park("there")
    assert group.has_started and trajectory.journal_bytes == 0
    group.restart()
    assert not group.has_started


def test_given_tokens_as_an_array_or_as_a_list_then_the_call_is_the_same() -> None:
    made = set()
    for kind in (list, lambda ids: array("i", ids)):
        it = recorder(Trajectory(session_id=0))
        one = it.begin_turn([5])
        append_tokens(one, kind([1, 2]), [0.0, 0.0], [(0, 1), (1, 1)])
        made.add(it.begin_call("tool", b"")[0].call_id)
    assert len(made) == 1
