"""Worker queues: nothing is lost, order is kept, a dry worker takes from the fullest."""

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.worker_queues import WaitingGroup, WorkerQueues


def waiting(*uids: str, **about) -> list[WaitingGroup]:
    return [WaitingGroup(prompt_uid=uid, unfinished=1, **about) for uid in uids]


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
            queues.extend(waiting(*uids))
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


def test_given_groups_with_a_home_then_they_wait_there_and_others_take_them_last() -> None:
    queues = WorkerQueues(3)
    queues.extend([*waiting("at home", "also", home=1), *waiting("other", "a", "b")])
    assert [queues.pop(1), queues.pop(2)] == ["at home", "other"]
    assert [queues.pop(0), queues.pop(0), queues.pop(0)] == ["a", "b", "also"]
    assert queues.pop(1) is None


def test_given_groups_that_are_bound_to_their_home_then_nobody_else_takes_them_and_all_know() -> None:
    queues = WorkerQueues(2)
    queues.extend([*waiting("bound", home=1, is_bound=True), *waiting("free", home=1)])
    assert queues.has_for(0) and queues.pop(0) == "free"
    assert not queues.has_for(0) and queues.pop(0) is None
    assert queues.has_for(1) and queues.pop(1) == "bound"
    assert not queues.has_for(1) and queues.num_waiting == 0


def test_given_groups_with_frozen_requests_then_they_go_first_where_they_rest_or_anywhere() -> None:
    queues = WorkerQueues(2)
    frozen = [*waiting("rests", home=1, is_attached=True), *waiting("frozen", is_attached=True)]
    queues.extend([*waiting("a", "b"), *frozen])
    assert queues.has_for(0, attached_only=True) and queues.pop(0, attached_only=True) == "frozen"
    assert not queues.has_for(0, attached_only=True) and queues.pop(0, attached_only=True) is None
    assert queues.has_for(0) and queues.pop(0) == "a"
    assert queues.num_waiting == 2 and queues.pop(1) == "rests"
    assert queues.clear() == ["b"] and queues.num_waiting == 0


@given(
    lanes=st.integers(1, 3),
    num_workers=st.integers(1, 4),
    rounds=st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=12), max_size=6),
)
def test_given_lanes_and_groups_that_the_stop_has_frozen_in_them_then_all_of_those_start_at_once_in_the_next_round(
    lanes: int, num_workers: int, rounds: list[list[tuple[int, bool, bool]]]
) -> None:
    """Whichever lanes have asked when a round stops, whichever groups have ended, and wherever the others rest."""
    frozen: dict[str, int | None] = {}
    for number, asks in enumerate(rounds):
        fresh = [f"fresh-{number}-{k}" for k in range(12)]
        queues = queues_of(num_workers, fresh, frozen)
        free, running = [lanes] * num_workers, dict[str, int | None]()
        for asked, has_ended, rests in asks:
            worker = asked % num_workers
            if free[worker] and (uid := queues.pop(worker)) is not None and not has_ended:
                free[worker] -= 1
                running[uid] = worker if rests else None
        left = set(queues.clear())
        frozen = running | {uid: home for uid, home in frozen.items() if uid in left}
        queues = queues_of(num_workers, ["fresh"] * 12, frozen)
        started = {queues.pop(worker) for _ in range(lanes) for worker in range(num_workers)}
        assert started >= frozen.keys()


def queues_of(num_workers: int, fresh: list[str], frozen: dict[str, int | None]) -> WorkerQueues:
    queues = WorkerQueues(num_workers)
    queues.extend(waiting(*fresh))
    queues.extend(group for uid, home in frozen.items() for group in waiting(uid, home=home, is_attached=True))
    return queues
