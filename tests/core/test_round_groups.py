"""The groups of a round: nothing is lost, order is kept, homes come first, and totals are those of the groups."""

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.round_groups import WAITING, GroupState, RoundGroups, WaitingGroup

WORKERS = 3


def unbounded() -> RoundGroups:
    return RoundGroups(pool_size=None, most_unfinished=None)


def waiting(*uids: str, **about) -> list[WaitingGroup]:
    return [WaitingGroup(prompt_uid=uid, unfinished=1, **about) for uid in uids]


KINDS = st.builds(
    dict,
    has_begun=st.booleans(),
    is_attached=st.booleans(),
    home=st.none() | st.integers(0, WORKERS - 1),
    is_bound=st.booleans(),
)
CALLS = st.lists(st.one_of(KINDS, st.tuples(st.integers(0, WORKERS - 1), st.sets(st.sampled_from(WAITING)))))


@given(calls=CALLS)
def test_a_worker_starts_frozen_then_begun_then_fresh_groups_each_in_order_and_others_homes_last(calls: list) -> None:
    groups, line, started = unbounded(), list[WaitingGroup](), list[str]()

    def place(group: WaitingGroup) -> tuple[int, bool]:
        return WAITING.index(group.state), group.is_attached and group.home is None

    def may_leave_home(group: WaitingGroup) -> bool:
        return group.home is None or not (group.is_bound or group.is_attached)

    for number, call in enumerate(calls):
        if isinstance(call, dict):
            [group] = waiting(f"group-{number}", **call)
            groups.add([group])
            line.append(group)
            continue
        worker, states = call
        open_groups = sorted((one for one in line if one.state in states), key=place)
        near = [one.prompt_uid for one in open_groups if one.home in (None, worker)]
        far = [one.prompt_uid for one in open_groups if may_leave_home(one)]
        expected = next(iter(near or far), None)
        assert groups.next_for(worker, states) == expected == groups.start(worker, states)
        line = [one for one in line if one.prompt_uid != expected]
        started += [] if expected is None else [expected]
        assert groups.uids(*WAITING) == tuple(one.prompt_uid for one in line)
        assert groups.uids(GroupState.RUNNING) == tuple(started)
        assert all(groups.num(state) == sum(one.state is state for one in line) for state in WAITING)


@given(
    lanes=st.integers(1, 3),
    workers=st.integers(1, 4),
    rounds=st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=12), max_size=6),
)
def test_given_lanes_and_groups_that_the_stop_has_frozen_in_them_then_all_of_those_start_at_once_in_the_next_round(
    lanes: int, workers: int, rounds: list[list[tuple[int, bool, bool]]]
) -> None:
    """Whichever lanes have asked when a round stops, whichever groups have ended, and wherever the others rest."""
    frozen: dict[str, int | None] = {}
    for number, asks in enumerate(rounds):
        groups = groups_of([f"fresh-{number}-{k}" for k in range(12)], frozen)
        free, running = [lanes] * workers, dict[str, int | None]()
        for asked, has_ended, rests in asks:
            worker = asked % workers
            if free[worker] and (uid := groups.start(worker, WAITING)) is not None and not has_ended:
                free[worker] -= 1
                running[uid] = worker if rests else None
        left = set(groups.uids(*WAITING))
        frozen = running | {uid: home for uid, home in frozen.items() if uid in left}
        groups = groups_of([f"later-{k}" for k in range(12)], frozen)
        started = {groups.start(worker, WAITING) for _ in range(lanes) for worker in range(workers)}
        assert started >= frozen.keys()


def groups_of(fresh: list[str], frozen: dict[str, int | None]) -> RoundGroups:
    groups = unbounded()
    groups.add(waiting(*fresh))
    groups.add(group for uid, home in frozen.items() for group in waiting(uid, home=home, is_attached=True))
    return groups
