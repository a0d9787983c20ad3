"""Worker queues: nothing is lost, order is kept, a dry worker takes from the fullest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.worker_queues import WorkerQueues

calls = st.lists(st.one_of(st.integers(0, 7).map(lambda n: ("extend", n)), st.integers(0, 4).map(lambda w: ("pop", w))))


@given(num_workers=st.integers(1, 5), calls=calls)
def test_every_group_comes_out_once_own_queue_first_then_the_fullest_and_the_rest_in_order(
    num_workers: int, calls: list[tuple[str, int]]
) -> None:
    queues = WorkerQueues(num_workers)
    model: list[list[str]] = [[] for _ in range(num_workers)]
    dealt: list[str] = []
    popped: list[str] = []
    for call, argument in calls:
        if call == "extend":
            uids = [f"group-{len(dealt) + k}" for k in range(argument)]
            queues.extend(uids)
            for uid in uids:
                model[len(dealt) % num_workers].append(uid)
                dealt.append(uid)
        else:
            worker = argument % num_workers
            taken = queues.pop(worker)
            lengths = [len(queue) for queue in model]
            if taken is None:
                assert lengths == [0] * num_workers
                continue
            source = next(i for i, queue in enumerate(model) if taken in queue)
            assert model[source].pop(0) == taken
            assert source == worker or (lengths[worker] == 0 and lengths[source] == max(lengths))
            popped.append(taken)
        assert queues.num_waiting == len(dealt) - len(popped)
    assert queues.clear() == [uid for uid in dealt if uid not in popped]
    assert queues.num_waiting == 0


def test_given_uneven_queues_when_cleared_then_the_groups_come_in_the_order_they_were_dealt() -> None:
    queues = WorkerQueues(2)
    queues.extend(["a", "b", "c", "d"])
    assert queues.pop(0) == "a"
    assert queues.clear() == ["b", "c", "d"]


def test_given_no_worker_when_created_then_it_is_refused() -> None:
    with pytest.raises(ValueError, match="num_workers=0"):
        WorkerQueues(0)


def test_given_groups_with_a_home_then_they_wait_there_and_others_take_them_last() -> None:
    queues = WorkerQueues(3)
    queues.extend(["at home", "also", "other", "a", "b"], {"at home": 1, "also": 1})
    assert [queues.pop(1), queues.pop(2)] == ["at home", "other"]
    assert [queues.pop(0), queues.pop(0), queues.pop(0)] == ["a", "b", "also"]
    assert queues.pop(1) is None


def test_given_groups_that_are_bound_to_their_home_then_nobody_else_takes_them_and_all_know() -> None:
    queues = WorkerQueues(2)
    queues.extend(["bound", "free"], {"bound": 1, "free": 1}, {"bound"})
    assert queues.has_for(0) and queues.pop(0) == "free"
    assert not queues.has_for(0) and queues.pop(0) is None
    assert queues.has_for(1) and queues.pop(1) == "bound"
    assert not queues.has_for(1) and queues.num_waiting == 0
