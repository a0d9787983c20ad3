"""The load balancer's decisions, where servers size themselves."""

import pytest

from recipe.async_dapo.core.balance import Balance, Returned
from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.core.leases import LeaseTable

ROOMY = EngineLoad(kv_room_tok=100_000, max_num_seqs=256)
PREEMPTING = EngineLoad(kv_room_tok=100_000, max_num_seqs=256, preemptions=100, generated_tok=100)


def test_given_a_server_that_preempts_when_places_are_taken_then_no_other_server_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    balance = Balance(max_per_server=100, pool_size=None, sizes_itself=True, first_context_tok=1_000, limit_tok=8_000)
    balance.leases.add_servers("abc")
    balance.open(dict.fromkeys("abc", ROOMY))
    on_b = [grant for k in range(60) for grant in balance.request(str(k), None) if grant.server_id == "b"]
    sized: list[str] = []
    real = LeaseTable.set_places
    monkeypatch.setattr(
        LeaseTable, "set_places", lambda table, places, weights: sized.extend(places) or real(table, places, weights)
    )
    balance.release(Returned(lease_id=on_b[0].lease_id, server_id="b", load=PREEMPTING))
    assert sized == ["b"] and balance.steered == 1
    assert balance.leases.capacity == balance.controller.total < 3 * 85
