"""The load balancer's decisions: places, expected lengths, and servers that size themselves."""

import pytest

from recipe.async_dapo.core.balance import Balance, Returned
from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.core.leases import LeaseTable

LOAD = EngineLoad(kv_room_tok=100_000, max_num_seqs=64)
PREEMPTING = EngineLoad(kv_room_tok=100_000, max_num_seqs=64, preemptions=500, generated_tok=1_000)


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
    sizing.release(Returned(lease_id="lease-0", server_id="a", response_tok=900, load=PREEMPTING))
    assert sizing.steered == 1 and sizing.places < 84
    sizing.close({"a": LOAD, "b": LOAD})
    places = sizing.places
    sizing.release(Returned(lease_id="lease-1", server_id="a", load=PREEMPTING))
    assert sizing.places == places, "what comes back after the stop belongs to no round"


def test_given_a_fixed_pool_then_what_engines_report_changes_nothing():
    fixed = balance(sizes_itself=False, max_per_server=7)
    fixed.open({"a": LOAD, "b": LOAD})
    fixed.request("lease", None, prompt_tok=100)
    fixed.release(Returned(lease_id="lease", server_id="a", load=PREEMPTING))
    fixed.close({"a": PREEMPTING})
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


def test_given_a_server_that_preempts_when_places_are_taken_then_no_other_server_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizing = balance()
    sizing.open({"a": LOAD, "b": LOAD})
    on_b = [grant for k in range(80) for grant in sizing.request(str(k), None) if grant.server_id == "b"]
    sized: list[str] = []
    real = LeaseTable.set_places
    monkeypatch.setattr(
        LeaseTable, "set_places", lambda table, places, weights: sized.extend(places) or real(table, places, weights)
    )
    sizing.release(Returned(lease_id=on_b[0].lease_id, server_id="b", load=PREEMPTING))
    assert sized == ["b"] and sizing.steered == 1
    assert sizing.leases.capacity == sizing.controller.total < 84
