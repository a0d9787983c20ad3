"""The groups of a round: nothing is lost, order is kept, homes come first, and totals are those of the groups."""

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.mix import ALL
from recipe.async_dapo.core.round_groups import WAITING, GroupState, RoundGroups, WaitingGroup

WORKERS = 3


def unbounded() -> RoundGroups:
    return RoundGroups(pool_size=None, most_unfinished=None)


def waiting(*uids: str, **about) -> list[WaitingGroup]:
    return [WaitingGroup(prompt_uid=uid, unfinished=1, **about) for uid in uids]


KINDS = st.builds(
    dict,
    has_begun=st.booleans(),
    affinity=st.none() | st.integers(0, WORKERS - 1),
    is_pinned=st.booleans(),
)
CALLS = st.lists(st.one_of(KINDS, st.tuples(st.integers(0, WORKERS - 1), st.sets(st.sampled_from(WAITING)))))


@given(calls=CALLS)
def test_a_worker_starts_begun_then_fresh_groups_each_in_order_and_others_homes_last(calls: list) -> None:
    groups, line, started = unbounded(), list[WaitingGroup](), list[str]()

    for number, call in enumerate(calls):
        if isinstance(call, dict):
            [group] = waiting(f"group-{number}", **call)
            groups.add(group, ALL)
            line.append(group)
            continue
        worker, states = call
        open_groups = sorted((one for one in line if one.state in states), key=lambda group: WAITING.index(group.state))
        near = [one.prompt_uid for one in open_groups if one.affinity in (None, worker)]
        far = [one.prompt_uid for one in open_groups if one.affinity is None or not one.is_pinned]
        expected = next(iter(near or far), None)
        startable = {(state, ALL): rank for rank, state in enumerate(WAITING) if state in states}
        assert groups.next_for(worker, startable) == expected == groups.start(worker, startable)
        line = [one for one in line if one.prompt_uid != expected]
        started += [] if expected is None else [expected]
        assert groups.uids(*WAITING) == tuple(one.prompt_uid for one in line)
        assert groups.uids(GroupState.RUNNING) == tuple(started)
        assert all(groups.num(state) == sum(one.state is state for one in line) for state in WAITING)
