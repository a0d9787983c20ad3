"""The load balancer's decisions: capacity, groups that stay together, and servers that size themselves."""

from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.core.leases import Balance, Returned

LOAD = EngineLoad(kv_room_tok=100_000, max_num_seqs=64)
PREEMPTING = EngineLoad(kv_room_tok=100_000, max_num_seqs=64, preemptions=500, generated_tok=1_000)


def balance(**options) -> Balance:
    defaults = {
        "max_per_server": 999,
        "pool_size": None,
        "sizes_itself": True,
        "first_context_tok": 2_000,
    }
    made = Balance(**(defaults | options))
    made.leases.add_servers("ab")
    return made


def test_given_a_round_then_places_are_what_the_engines_have_room_for_and_reports_change_them_only_while_it_is_open():
    sizing = balance()
    sizing.open({"a": LOAD, "b": LOAD})
    assert sizing.capacity == 2 * int(0.85 * 100_000 / 2_000)
    for k in range(sizing.capacity):
        sizing.leases.request(f"lease-{k}", None)
    assert sizing.leases.request("waits", None) == []
    sizing.release(Returned(lease_id="lease-0", server_id="a", load=PREEMPTING))
    assert sizing.steered == 1 and sizing.leases.capacity == sizing.capacity < 84
    sizing.close({"a": LOAD, "b": LOAD})
    capacity = sizing.capacity
    sizing.release(Returned(lease_id="lease-1", server_id="a", load=PREEMPTING))
    assert sizing.capacity == capacity, "what comes back after the stop belongs to no round"


def test_given_a_fixed_pool_then_what_engines_report_changes_nothing():
    fixed = balance(sizes_itself=False, max_per_server=7)
    fixed.open({"a": LOAD, "b": LOAD})
    fixed.leases.request("lease", None)
    fixed.release(Returned(lease_id="lease", server_id="a", load=PREEMPTING))
    fixed.close({"a": PREEMPTING})
    assert fixed.capacity == 14


def spread(balance: Balance, groups: int, n: int) -> list[list[str]]:
    """The servers of each group's requests, which come group after group."""
    at = []
    for group in range(groups):
        grants = [balance.leases.request(f"g{group}-{k}", None, group=f"g{group}") for k in range(n)]
        at.append([one[0].server_id for one in grants])
    return at


def gathering_balance(gathers_groups: bool, capacity: int = 64) -> Balance:
    balance = Balance(
        max_per_server=capacity,
        pool_size=None,
        sizes_itself=False,
        first_context_tok=1_000,
        gathers_groups=gathers_groups,
    )
    balance.leases.add_servers("abcd")
    return balance


def test_given_drafts_when_groups_come_then_each_is_on_one_server_and_the_servers_are_as_full_as_without():
    together, apart = (spread(gathering_balance(keeps), groups=32, n=8) for keeps in (True, False))
    assert all(len(set(at)) == 1 for at in together) and all(len(set(at)) == 4 for at in apart)
    counts = [sum(at.count(server) for at in together) for server in "abcd"]
    assert counts == [64] * 4


def test_given_a_group_larger_than_an_eighth_of_a_server_when_it_comes_then_no_server_stays_empty_for_it():
    (at,) = spread(gathering_balance(True, capacity=16), groups=1, n=8)
    assert max(map(at.count, "abcd")) <= 3 and len(set(at)) >= 3


def test_given_a_new_round_when_interrupted_members_come_back_then_they_come_together():
    balance = gathering_balance(True)
    for k in range(4):  # one after the other, on four servers
        balance.leases.request(f"first-{k}", f"t{k}", group="g")
        balance.release(Returned(lease_id=f"first-{k}"))
        for other in range(9):
            balance.leases.request(f"other-{k}-{other}", f"s{other}")
    for k in range(4):
        for other in range(9):
            balance.leases.release(f"other-{k}-{other}")
    balance.open({})
    again = [balance.leases.request(f"again-{k}", f"t{k}", group="g") for k in range(4)]
    assert len({grant.server_id for grants in again for grant in grants}) == 1
