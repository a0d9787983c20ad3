"""Leases: capacity, none left while something is queued, FIFO, least load, and no leak in any order of calls."""

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recipe.async_dapo.core.leases import NEAR_SHARE, Grant, LeaseTable

from ..support.costly import costly

SERVERS = ["a", "b", "c"]
STICKY_KEYS = ["x", "y", None]


class LeaseMachine(RuleBasedStateMachine):
    """Drives a table and, beside it, plain lists that say what must be true."""

    @initialize(capacity=st.integers(1, 24), pool_size=st.none() | st.integers(3, 60), servers=st.integers(1, 3))
    def open(self, capacity: int, pool_size: int | None, servers: int) -> None:
        self.capacity, self.pool_size = capacity, pool_size
        self.table = LeaseTable(max_inflight_per_server=capacity, pool_size=pool_size)
        self.capacities: dict[str, int] = {}
        self.queued: list[tuple[str, str | None]] = []
        self.held: dict[str, str] = {}
        self.overtaken: set[str] = set()
        self.over: list[str] = []
        self.last_server: dict[str, str] = {}
        self.homes: dict[str, str] = {}
        self.names = (f"lease-{k}" for k in count())
        self.add_servers(SERVERS[:servers])

    @property
    def inflight(self) -> dict[str, int]:
        servers = list(self.held.values())
        return {server: servers.count(server) for server in self.capacities}

    def load(self, server: str) -> float:
        return self.inflight[server] / self.capacities[server]

    def expect(self, grants: list[Grant]) -> None:
        """Grants are those of the longest waiting, each on a server that was the right one at that moment: the one
        that is least full, or the one of the key's last request, unless that is fuller by too much; when keys are sent
        home, that one in any case."""
        for grant in grants:
            lease_id, sticky_key = self.queued.pop(0)
            assert grant.lease_id == lease_id
            loads = {at: self.load(at) for at, inflight in self.inflight.items() if inflight < self.capacities[at]}
            least, last = min(loads.values()), self.last_server.get(sticky_key) if sticky_key else None
            fuller = (loads[last] - least) * self.capacities[last] if last in loads else 99
            if (home := self.homes.pop(sticky_key, None)) in loads:
                assert grant.server_id == home
            elif fuller <= max(1, NEAR_SHARE * self.inflight.get(last, 0)):
                assert grant.server_id == last
            else:
                assert loads[grant.server_id] == least
            self.held[lease_id] = grant.server_id
            if sticky_key:
                self.last_server[sticky_key] = grant.server_id

    @rule(asked=st.lists(st.sampled_from(STICKY_KEYS), min_size=1, max_size=12))
    def request(self, asked: list[str | None]) -> None:
        for sticky_key in asked:
            lease_id = next(self.names)
            self.queued.append((lease_id, sticky_key))
            self.expect(self.table.request(lease_id, sticky_key))

    @rule(sizes=st.tuples(*[st.integers(1, 25)] * 3))
    def size(self, sizes: tuple[int, ...]) -> None:
        """A lease that is out stays, on a server with fewer capacities too."""
        capacities = dict(zip(SERVERS, sizes, strict=True))
        for server in self.capacities:
            self.capacities[server] = min(capacities[server], self.capacity)
        self.expect(self.table.set_capacities(capacities))

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
        assert not self.table.is_queued(lease_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[lease_id]
        self.over.append(lease_id)
        self.expect(self.table.release(lease_id))

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def withdraw_one(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.queued) - 1))
        lease_id = self.queued.pop(position)[0]
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
        assert self.table.withdraw_queued() == [one[0] for one in self.queued]
        self.queued.clear()

    @rule(server_ids=st.lists(st.sampled_from(SERVERS), unique=True))
    def add_servers(self, server_ids: list[str]) -> None:
        for server in set(server_ids) - self.capacities.keys():
            self.capacities[server] = self.capacity
        self.expect(self.table.add_servers(server_ids))

    @rule(server_ids=st.lists(st.sampled_from(SERVERS), unique=True))
    def remove_servers(self, server_ids: list[str]) -> None:
        for server in server_ids:
            self.capacities.pop(server, None)
        lost = [lease_id for lease_id, server in self.held.items() if server in server_ids]
        for lease_id in lost:
            del self.held[lease_id]
        self.over += lost
        self.expect(self.table.remove_servers(server_ids))

    @rule()
    def forget_sticky_keys(self) -> None:
        assert self.table.forget_sticky_keys() == len(self.last_server)
        self.last_server.clear()

    @rule()
    def pin_last_servers(self) -> None:
        self.table.pin_last_servers()
        self.homes = dict(self.last_server)

    @invariant()
    def the_table_knows_what_is_held(self) -> None:
        assert self.table.inflight == self.inflight
        assert all(server.load == self.load(key) for key, server in self.table._by_load.servers.items())
        assert self.table.total_inflight == len(self.held)
        assert all(self.table.server_of(lease_id) == server for lease_id, server in self.held.items())
        assert [self.table.is_queued(one[0]) for one in self.queued] == [True] * len(self.queued)

    @invariant()
    def capacity_is_never_exceeded_and_no_place_is_idle_while_someone_waits(self) -> None:
        assert all(inflight <= self.capacity for inflight in self.table.inflight.values())
        assert self.pool_size is None or self.table.total_inflight <= self.pool_size
        assert self.table.num_queued == len(self.queued)
        is_full = all(inflight >= self.capacities[server] for server, inflight in self.inflight.items())
        assert not self.queued or is_full or len(self.held) == self.pool_size

    def teardown(self) -> None:
        if hasattr(self, "table"):
            while self.held or self.queued:
                lease_id = next(iter(self.held), None) or self.queued[0][0]
                self.held.pop(lease_id, None)
                self.queued = [one for one in self.queued if one[0] != lease_id]
                self.expect(self.table.release(lease_id))
            assert set(self.table.inflight.values()) <= {0}


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = costly(TestLeaseMachine.settings)


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
    assert len(table._by_load._heap) <= 100
