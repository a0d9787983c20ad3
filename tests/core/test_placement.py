"""Where requests go: to the server whose KV cache is least full for its size, with a place left."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.balance import Balance, Returned
from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.core.leases import LeaseTable

LOAD = EngineLoad(kv_room_tok=100_000, max_num_seqs=64)


def table(names: str = "ab", places: int = 100, **options) -> LeaseTable:
    leases = LeaseTable(max_inflight_per_server=places, **options)
    leases.add_servers(names)
    return leases


def placed(leases: LeaseTable, lease_id: str, **request) -> str:
    (grant,) = leases.request(lease_id, **request)
    return grant.server_id


def test_given_one_long_trajectory_and_short_ones_then_tokens_are_balanced_not_requests():
    leases = table()
    long_at = placed(leases, "long", kv_tok=12_000.0)
    short_at = {placed(leases, f"short-{k}", kv_tok=1_000.0) for k in range(12)}
    assert long_at not in short_at


def test_given_a_server_of_half_the_weight_then_it_holds_half_the_tokens():
    leases = table("abc")
    leases.set_places({"a": 100, "b": 100, "c": 100}, {"a": 2.0, "b": 2.0, "c": 1.0})
    counts = dict.fromkeys("abc", 0)
    for k in range(100):
        counts[placed(leases, f"lease-{k}", kv_tok=500.0)] += 1
    assert counts == {"a": 40, "b": 40, "c": 20}


def test_given_a_full_server_that_is_the_least_loaded_then_the_next_one_is_taken():
    leases = table(places=10)
    leases.set_places({"a": 1, "b": 10}, {})
    placed(leases, "first", kv_tok=1.0)
    at = [placed(leases, f"lease-{k}", kv_tok=100.0) for k in range(10)]
    assert (sorted(leases.inflight.values()) == [1, 10] and set(at) == {"a", "b"}) or at == ["b"] * 10
    assert leases.request("one too many") == []


def test_given_fewer_places_than_leases_then_none_is_taken_back_and_none_granted_until_enough_have_returned():
    leases = table("a", places=4)
    for k in range(4):
        placed(leases, f"lease-{k}")
    leases.set_places({"a": 2}, {})
    assert leases.request("next") == [] and leases.release("lease-0") == [] and leases.release("lease-1") == []
    assert [grant.lease_id for grant in leases.release("lease-2")] == ["next"]
    assert leases.inflight == {"a": 2}


def test_given_a_cached_prefix_then_its_server_is_kept_until_it_is_fuller_by_more_than_the_prefix():
    leases = table()
    home = placed(leases, "turn-1", sticky_key="t", kv_tok=1_000.0)
    leases.release("turn-1")
    placed(leases, "other", sticky_key="o", kv_tok=500.0)  # on the other one, which has been idle for longer
    for k, fuller_tok in enumerate((400.0, 900.0)):
        leases.request(f"weight-{k}", sticky_key="t", prefix_tok=10_000, kv_tok=fuller_tok)
    assert placed(leases, "turn-2", sticky_key="t", prefix_tok=900, kv_tok=1.0) == home
    assert placed(leases, "turn-3", sticky_key="t", prefix_tok=700, kv_tok=1.0) != home


@given(
    seed=st.integers(0, 2**32),
    places=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    steps=st.integers(1, 120),
    pool=st.none() | st.integers(1, 10),
)
def test_given_any_order_of_requests_releases_and_sizes_then_no_place_is_exceeded_idle_or_leaked(
    seed, places, steps, pool
):
    random = Random(seed)
    names = [f"s{k}" for k in range(len(places))]
    leases = LeaseTable(max_inflight_per_server=6, pool_size=pool)
    leases.add_servers(names)
    limit = dict.fromkeys(names, 6)
    held: dict[str, str] = {}
    waiting: list[str] = []
    for step in range(steps):
        before = leases.inflight
        kind = random.choice(("request", "request", "release", "size"))
        if kind == "request":
            waiting.append(f"lease-{step}")
            grants = leases.request(f"lease-{step}", random.choice((None, "k")), kv_tok=random.choice((1.0, 900.0)))
        elif kind == "release" and held:
            name = random.choice(sorted(held))
            del held[name]
            grants = leases.release(name)
            before = leases.inflight
        else:
            limit = {name: random.randint(1, 6) for name in names}
            grants = leases.set_places(limit, {name: random.choice((1.0, 5.0)) for name in names})
        for grant in grants:
            assert grant.lease_id == waiting.pop(0), "not in the order of requests"
            held[grant.lease_id] = grant.server_id
        now = leases.inflight
        assert all(now[name] <= max(limit[name], before[name]) for name in names)
        assert sum(now.values()) == len(held) and (pool is None or len(held) <= pool)
        if waiting and (pool is None or len(held) < pool):
            assert all(now[name] >= limit[name] for name in names), "a place is idle while someone waits"
    for name in list(held):
        del held[name]
        held |= {grant.lease_id: grant.server_id for grant in leases.release(name)}
    while held:
        name = next(iter(held))
        del held[name]
        held |= {grant.lease_id: grant.server_id for grant in leases.release(name)}
    assert leases.total_inflight == 0 and leases.num_waiting == 0
    assert all(server.kv_tok == 0 for server in leases._placement.servers.values())


def balance(**options) -> Balance:
    defaults = {
        "max_per_server": 999,
        "pool_size": None,
        "sizes_itself": True,
        "first_context_tok": 2_000,
        "limit_tok": 16_000,
    }
    made = Balance(**(defaults | options))
    made.leases.add_servers("ab")
    return made


def test_given_a_round_then_places_are_what_the_engines_have_room_for_and_reports_change_them_only_while_it_is_open():
    sizing = balance()
    sizing.open({"a": LOAD, "b": LOAD})
    assert sizing.places == 2 * int(0.85 * 100_000 / 2_000)
    for k in range(sizing.places):
        sizing.request(f"lease-{k}", None, prompt_tok=100)
    assert sizing.request("waits", None, prompt_tok=100) == []
    bad = EngineLoad(kv_room_tok=100_000, max_num_seqs=64, preemptions=500, generated_tok=1_000)
    sizing.release(Returned(lease_id="lease-0", server_id="a", response_tok=900, load=bad))
    assert sizing.steered == 1 and sizing.places < 84
    sizing.close({"a": LOAD, "b": LOAD})
    places = sizing.places
    sizing.release(Returned(lease_id="lease-1", server_id="a", load=bad))
    assert sizing.places == places, "what comes back after the stop belongs to no round"


def test_given_a_fixed_pool_then_what_engines_report_changes_nothing():
    fixed = balance(sizes_itself=False, max_per_server=7)
    fixed.open({"a": LOAD, "b": LOAD})
    bad = EngineLoad(kv_room_tok=100_000, max_num_seqs=64, preemptions=500)
    fixed.request("lease", None, prompt_tok=100)
    fixed.release(Returned(lease_id="lease", server_id="a", load=bad))
    fixed.close({"a": bad})
    assert fixed.places == 14


def test_given_lengths_seen_then_a_resumed_trajectory_counts_with_what_it_has_and_what_it_will_get():
    learned = balance(sizes_itself=False)
    learned.open({"a": LOAD, "b": LOAD})
    for k in range(100):
        learned.release(Returned(lease_id=f"gone-{k}", response_tok=1_000 if k % 2 else 3_000))
    learned.request("fresh", None, prompt_tok=100)
    learned.request("resumed", None, prompt_tok=100, generated_tok=2_000)
    kv_tok = {key: tok for server in learned.leases._placement.servers.values() for key, tok in server.leases.items()}
    assert kv_tok == {"fresh": 2_100, "resumed": 3_100}
