"""Leases: capacity, no idle place while someone waits, FIFO, least load, and no leak in any order of calls."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recipe.async_dapo.core.leases import RISE, Grant, LeaseTable, StepSums, speeds

SERVERS = ["a", "b", "c"]
STICKY_KEYS = ["x", "y", None]
PREFIXES_TOK, KV_TOK = st.sampled_from([0, 400, 800]), st.sampled_from([1, 500, 700])


class LeaseMachine(RuleBasedStateMachine):
    """Drives a table and, beside it, plain lists that say what must be true."""

    @initialize(capacity=st.integers(1, 4), pool_size=st.none() | st.integers(3, 9), servers=st.integers(1, 3))
    def open(self, capacity: int, pool_size: int | None, servers: int) -> None:
        self.capacity, self.pool_size = capacity, pool_size
        self.table = LeaseTable(max_inflight_per_server=capacity, pool_size=pool_size)
        self.places: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        self.waiting: list[tuple[str, str | None, int, int]] = []
        self.held: dict[str, tuple[str, int]] = {}
        self.overtaken: set[str] = set()
        self.over: list[str] = []
        self.last_server: dict[str, str] = {}
        self.names = (f"lease-{k}" for k in count())
        self.add_servers(SERVERS[:servers])

    @property
    def inflight(self) -> dict[str, int]:
        servers = [server for server, _ in self.held.values()]
        return {server: servers.count(server) for server in self.places}

    def load(self, server: str) -> float:
        return sum(kv_tok for at, kv_tok in self.held.values() if at == server) / self.weights[server]

    def expect(self, grants: list[Grant]) -> None:
        """Grants are those of the longest waiting, each on a server that was the right one at that moment: the one
        whose cache is least full for its weight, or with the prefix, unless it is fuller by more than that."""
        for grant in grants:
            lease_id, sticky_key, prefix_tok, kv_tok = self.waiting.pop(0)
            assert grant.lease_id == lease_id
            loads = {at: self.load(at) for at, inflight in self.inflight.items() if inflight < self.places[at]}
            least, last = min(loads.values()), self.last_server.get(sticky_key) if sticky_key else None
            if last in loads and (loads[last] - least) * self.weights[last] <= max(prefix_tok, 1):
                assert grant.server_id == last
            else:
                assert loads[grant.server_id] == least
            self.held[lease_id] = grant.server_id, kv_tok
            if sticky_key:
                self.last_server[sticky_key] = grant.server_id

    @rule(asked=st.lists(st.tuples(st.sampled_from(STICKY_KEYS), PREFIXES_TOK, KV_TOK), min_size=1, max_size=6))
    def request(self, asked: list[tuple[str | None, int, int]]) -> None:
        for sticky_key, prefix_tok, kv_tok in asked:
            lease_id = next(self.names)
            self.waiting.append((lease_id, sticky_key, prefix_tok, kv_tok))
            self.expect(self.table.request(lease_id, sticky_key, prefix_tok=prefix_tok, kv_tok=kv_tok))

    @rule(sizes=st.tuples(*[st.tuples(st.integers(1, 5), st.sampled_from([0.5, 1.0, 4.0]))] * 3))
    def size(self, sizes: tuple[tuple[int, float], ...]) -> None:
        """A lease that is out stays, on a server with fewer places too."""
        places = dict(zip(SERVERS, (places for places, _ in sizes), strict=True))
        weights = dict(zip(SERVERS, (weight for _, weight in sizes), strict=True))
        for server in self.places:
            self.places[server], self.weights[server] = min(places[server], self.capacity), weights[server]
        self.expect(self.table.set_places(places, weights))

    @rule()
    def release_before_request(self) -> None:
        lease_id = next(self.names)
        self.expect(self.table.release(lease_id))
        self.overtaken.add(lease_id)

    @precondition(lambda self: self.overtaken)
    @rule(data=st.data())
    def request_what_was_released(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.overtaken)))
        self.overtaken.remove(lease_id)
        assert self.table.request(lease_id, "x") == []
        assert not self.table.is_waiting(lease_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[lease_id]
        self.over.append(lease_id)
        self.expect(self.table.release(lease_id))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw_one(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.waiting) - 1))
        lease_id = self.waiting.pop(position)[0]
        self.over.append(lease_id)
        self.expect(self.table.release(lease_id))

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        before = dict(self.table.inflight)
        self.expect(self.table.release(data.draw(st.sampled_from(self.over))))
        assert self.table.inflight == before

    @rule()
    def withdraw_all(self) -> None:
        assert self.table.withdraw_waiting() == [one[0] for one in self.waiting]
        self.waiting.clear()

    @rule(server_ids=st.lists(st.sampled_from(SERVERS), unique=True))
    def add_servers(self, server_ids: list[str]) -> None:
        for server in set(server_ids) - self.places.keys():
            self.places[server], self.weights[server] = self.capacity, 1.0
        self.expect(self.table.add_servers(server_ids))

    @rule(server_ids=st.lists(st.sampled_from(SERVERS), unique=True))
    def remove_servers(self, server_ids: list[str]) -> None:
        for server in server_ids:
            self.places.pop(server, None)
        lost = [lease_id for lease_id, (server, _) in self.held.items() if server in server_ids]
        for lease_id in lost:
            del self.held[lease_id]
        self.over += lost
        self.expect(self.table.remove_servers(server_ids))

    @rule()
    def forget_sticky_keys(self) -> None:
        assert self.table.forget_sticky_keys() == len(self.last_server)
        self.last_server.clear()

    @invariant()
    def the_table_knows_what_is_held(self) -> None:
        assert self.table.inflight == self.inflight
        assert all(server.load == self.load(key) for key, server in self.table._placement.servers.items())
        assert self.table.total_inflight == len(self.held)
        assert all(self.table.server_of(lease_id) == server for lease_id, (server, _) in self.held.items())
        assert [self.table.is_waiting(one[0]) for one in self.waiting] == [True] * len(self.waiting)

    @invariant()
    def capacity_is_never_exceeded_and_no_place_is_idle_while_someone_waits(self) -> None:
        assert all(inflight <= self.capacity for inflight in self.table.inflight.values())
        assert self.pool_size is None or self.table.total_inflight <= self.pool_size
        assert self.table.num_waiting == len(self.waiting)
        is_full = all(inflight >= self.places[server] for server, inflight in self.inflight.items())
        assert not self.waiting or is_full or len(self.held) == self.pool_size

    def teardown(self) -> None:
        if hasattr(self, "table"):
            while self.held or self.waiting:
                lease_id = next(iter(self.held), None) or self.waiting[0][0]
                self.held.pop(lease_id, None)
                self.waiting = [one for one in self.waiting if one[0] != lease_id]
                self.expect(self.table.release(lease_id))
            assert set(self.table.inflight.values()) <= {0}


TestLeaseMachine = LeaseMachine.TestCase


def test_given_equal_loads_when_leases_come_and_go_then_servers_take_turns() -> None:
    table = LeaseTable(max_inflight_per_server=1)
    table.add_servers("abc")
    servers = []
    for k in range(6):
        (grant,) = table.request(f"lease-{k}")
        servers.append(grant.server_id)
        table.release(grant.lease_id)
    assert sorted(servers[:3]) == ["a", "b", "c"] and servers[:3] == servers[3:]


def test_given_many_stray_releases_when_remembered_then_memory_is_bounded_and_the_newest_are_kept() -> None:
    table = LeaseTable(max_inflight_per_server=1, remembered=10)
    table.add_servers(["a"])
    for k in range(1000):
        table.release(f"stray-{k}")
        table.request(f"lease-{k}", sticky_key=f"key-{k}")
        table.release(f"lease-{k}")
    assert len(table._overtaken) == len(table._sticky) == 10
    assert table.request("stray-999") == []
    assert len(table._placement._by_load) <= 100


FAST_AND_SLOW = {"fast": 1.0, "b": 0.5, "c": 0.5}


def sums(batches: list[int], *, weights_s: float, each_s: float, speed: float = 1.0) -> StepSums:
    """Of steps with these numbers of requests."""
    step_s = [(weights_s + each_s * batch) / speed for batch in batches]
    return StepSums(
        steps=len(batches),
        requests=sum(batches),
        requests2=sum(batch**2 for batch in batches),
        seconds=sum(step_s),
        request_s=sum(batch * seconds for batch, seconds in zip(batches, step_s, strict=True)),
    )


@given(
    speed=st.floats(0.1, 1.0),
    weights_s=st.floats(0.0, 0.05),
    each_s=st.floats(1e-5, 1e-3),
    batches=st.lists(st.integers(1, 256), min_size=3, max_size=20, unique=True),
    share=st.floats(0.1, 1.0),
)
def test_given_batches_that_vary_then_a_speed_is_exact_however_many_requests_a_server_has(
    speed, weights_s, each_s, batches, share
) -> None:
    batches = [1, *batches, max(batches) + 9]
    mine = [max(1, int(share * batch)) for batch in batches]
    seen = {
        "a": sums(batches, weights_s=weights_s, each_s=each_s),
        "b": sums(batches[1:], weights_s=weights_s, each_s=each_s),
        "slow": sums(mine, weights_s=weights_s, each_s=each_s, speed=speed),
    }
    found = speeds(seen, {"a": 1.0, "b": 1.0, "slow": 0.9})
    assert found["slow"] == pytest.approx(speed, rel=0.01)


@pytest.mark.parametrize(("weights_s", "each_s"), [(0.01, 0.0), (0.0, 0.001), (0.01, 0.0005)])
def test_given_batches_all_alike_then_a_speed_stays_between_what_is_possible(weights_s, each_s) -> None:
    others = {key: sums([16] * 10, weights_s=weights_s, each_s=each_s) for key in "ab"}
    before = {"a": 1.0, "b": 1.0, "slow": 1.0}
    for _ in range(20):
        mine = [max(1, int(16 * before["slow"]))] * 10
        before |= speeds(others | {"slow": sums(mine, weights_s=weights_s, each_s=each_s, speed=0.5)}, before)
        assert 0.5 / RISE <= before["slow"] <= 0.8


def test_given_batches_nearly_alike_and_a_short_step_by_chance_then_a_slow_server_does_not_seem_slower_still() -> None:
    """Full batches' steps also hold what was admitted to them: the few others say nothing about what a request adds."""
    by_chance = StepSums(
        steps=52,
        requests=50 * 16 + 2 * 12,
        requests2=50 * 16**2 + 2 * 12**2,
        seconds=50 * 0.0125 + 2 * 0.007,
        request_s=50 * 16 * 0.0125 + 2 * 12 * 0.007,
    )
    slow = sums([8] * 50, weights_s=0.0105, each_s=0.0001, speed=0.5)
    found = speeds({"a": by_chance, "b": by_chance, "slow": slow}, {"a": 1.0, "b": 1.0, "slow": 0.5})
    assert found["slow"] == pytest.approx(0.55, abs=0.06)


def test_given_one_fast_server_then_it_is_compared_with_the_slow_ones_and_they_with_it_alone() -> None:
    seen = {key: sums([4, 8, 16], weights_s=0.01, each_s=0.001, speed=speed) for key, speed in FAST_AND_SLOW.items()}
    assert speeds(seen, FAST_AND_SLOW) == pytest.approx({"fast": 2.0, "b": 0.5, "c": 0.5})


def test_given_many_servers_then_sums_grow_with_their_number_and_not_with_its_square(monkeypatch) -> None:
    seen = {str(number): sums([4, 8], weights_s=0.01, each_s=0.001) for number in range(100)}
    made, init = [], StepSums.__init__
    monkeypatch.setattr(StepSums, "__init__", lambda one, **values: made.append(one) or init(one, **values))
    assert len(speeds(seen, dict.fromkeys(seen, 1.0))) == 100
    assert len(made) <= 4 * 100


def test_given_nothing_that_ran_or_no_other_server_then_nothing_is_concluded() -> None:
    one = sums([4, 8], weights_s=0.01, each_s=0.001)
    assert speeds({"a": one, "idle": StepSums()}, {"a": 1.0, "idle": 1.0}) == {}
