"""The server model: closed form against token by token, and the limits it must keep."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo_lab.plan.costs import StepCost
from recipe.async_dapo_lab.plan.engine import Engine, Request

from ..support.token_by_token import Arrival, serve

LONGEST_TOK = 160  # context and response of any arrival below


def cost_of(kv_room_tok: int = 100_000, **changes: float) -> StepCost:
    values = {
        "base_s": 0.005,
        "per_request_s": 3e-5,
        "per_kv_token_s": 1e-7,
        "prefill_token_s": 1e-4,
        "prefill_token2_s": 1e-8,
    }
    return StepCost(**(values | changes), kv_room_tok=kv_room_tok)


def request(name: int, context_tok: int, response_tok: int) -> Request:
    return Request(owner=name, context_tok=context_tok, remaining_tok=response_tok, prefill_tok=context_tok)


def drive(engine: Engine, arrivals: list[Arrival]) -> dict[int, float]:
    """Seconds at which each arrival was served, by the closed form, which keeps to the limits of cache and batch."""
    finished_s: dict[int, float] = {}
    coming = list(enumerate(arrivals))
    while coming or engine.next_boundary_s < inf:
        if coming and coming[0][1].time_s <= engine.next_boundary_s:
            name, arrival = coming.pop(0)
            engine.submit(request(name, arrival.context_tok, arrival.response_tok), arrival.time_s)
        else:
            now_s = engine.next_boundary_s
            finished_s |= {done.owner: now_s for done in engine.run_boundary()}
            assert engine.kv_tok <= engine._cost.kv_room_tok and engine.num_running <= engine._max_num_seqs
    assert engine.kv_tok == 0 and engine.num_running == engine.num_waiting == 0
    return finished_s


def arrivals() -> st.SearchStrategy[list[Arrival]]:
    gaps = st.one_of(st.just(0.0), st.floats(0, 0.3))
    one = st.tuples(gaps, st.integers(1, 60), st.integers(1, 100))

    def in_order(drawn: list[tuple[float, int, int]]) -> list[Arrival]:
        result: list[Arrival] = []
        for gap_s, context_tok, response_tok in drawn:
            time_s = gap_s + (result[-1].time_s if result else 0.0)
            result.append(Arrival(time_s, context_tok, response_tok))
        return result

    return st.lists(one, min_size=1, max_size=25).map(in_order)


@given(arrivals(), st.integers(LONGEST_TOK, 600), st.integers(1, 12), st.integers(0, 100), st.sampled_from([0.0, 0.01]))
def test_given_any_arrivals_when_served_in_closed_form_then_times_equal_those_token_by_token(
    given_arrivals, room, seqs, held, experts_s
):
    cost = cost_of(kv_room_tok=room + held, request_kv_tok=held, experts_s=experts_s, missed=0.75)
    engine = Engine(cost, max_num_seqs=seqs)

    finished_s = drive(engine, given_arrivals)

    reference = serve(cost, given_arrivals, max_num_seqs=seqs)
    assert finished_s == pytest.approx(reference.finished_s, rel=1e-9)
    assert engine.counters.preemptions == reference.preemptions
    assert engine.counters.generated_tok == sum(arrival.response_tok for arrival in given_arrivals)


@given(st.integers(1, 500), st.integers(1, 300), st.integers(0, 500_000), st.floats(0, 1e-5), st.floats(0, 0.999))
def test_given_any_stretch_when_its_seconds_are_turned_back_then_the_same_steps_come_out(steps, batch, kv, kv_s, part):
    cost = cost_of(per_kv_token_s=kv_s)
    seconds = cost.decode_s(steps, batch, kv)
    next_step_s = cost.decode_s(steps + 1, batch, kv) - seconds
    assert cost.steps_within(seconds + part * next_step_s, batch, kv) in (steps, steps + (part > 0.99))
    assert cost.steps_within(seconds * (1 - 1e-9), batch, kv) in (steps - 1, steps)


@given(arrivals(), st.floats(0, 3))
def test_given_requests_when_aborted_then_every_token_of_a_whole_step_comes_back(given_arrivals, abort_s):
    engine = Engine(cost_of(kv_room_tok=LONGEST_TOK), max_num_seqs=4)
    done = []
    for name, arrival in enumerate(given_arrivals):
        engine.submit(request(name, arrival.context_tok, arrival.response_tok), 0.0)
    while engine.next_boundary_s <= abort_s:
        done += engine.run_boundary()
    back = engine.abort(abort_s)
    assert sum(one.generated_tok for one in done + back) == engine.counters.generated_tok
    assert sorted(one.owner for one in done + back) == list(range(len(given_arrivals)))
    assert engine.num_running == engine.num_waiting == 0 and engine.next_boundary_s == inf
