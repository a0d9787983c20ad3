"""How many requests a server may have in flight, against a model of servers with a KV cache."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.concurrency import (
    MOST_SHARE,
    TOO_MANY,
    ConcurrencyController,
    EngineLoad,
)

LOAD = EngineLoad(kv_room_tok=100_000, max_num_seqs=256)


@dataclass
class ModelledServer:
    """Every request takes `context_tok` of the KV cache, and what does not fit is preempted again and again. For half
    of its steps a round runs half as many.
    """

    kv_room_tok: int = 100_000
    max_num_seqs: int = 256
    context_tok: float = 1000.0

    def after(self, inflight: int) -> EngineLoad:
        running = min(inflight, self.max_num_seqs, int(self.kv_room_tok / self.context_tok))
        generated_tok = 33_333 * (running + max(1, running // 2))
        request_s = 0.01 * generated_tok
        return EngineLoad(
            kv_room_tok=self.kv_room_tok,
            max_num_seqs=self.max_num_seqs,
            kv_tok_s=request_s * self.context_tok,
            preemptions=10 * max(0, min(inflight, self.max_num_seqs) - running),
            generated_tok=generated_tok,
            request_s=request_s,
        )


def rounds(controller: ConcurrencyController, servers: dict[str, ModelledServer], count: int) -> list[dict[str, int]]:
    """Places in each round, all of which are used."""
    seen = []
    for _ in range(count):
        controller.open(
            {key: replace(LOAD, kv_room_tok=s.kv_room_tok, max_num_seqs=s.max_num_seqs) for key, s in servers.items()}
        )
        capacities = controller.capacities
        seen.append(capacities)
        controller.end_round({key: server.after(capacities[key]) for key, server in servers.items()}, capacities)
    return seen


@given(
    room=st.integers(2_000, 2_000_000),
    context=st.floats(50, 2_000),
    guess=st.integers(50, 20_000),
    most=st.integers(1, 2_000),
    max_num_seqs=st.integers(1, 2_000),
)
def test_given_any_server_and_first_guess_then_from_the_second_round_on_its_room_is_filled_and_not_passed(
    room, context, guess, most, max_num_seqs
):
    server = ModelledServer(kv_room_tok=room, context_tok=context, max_num_seqs=max_num_seqs)
    controller = ConcurrencyController(first_context_tok=guess, most_per_server=most)
    for number, capacities in enumerate(rounds(controller, {"a": server}, 12)):
        fits = min(room / context, max_num_seqs, most)
        assert 1 <= capacities["a"] <= max(1, most)
        if number >= 1 or guess > context:
            assert capacities["a"] <= max(1, fits), "passed the room"
        if number >= 1:
            assert capacities["a"] >= int(0.75 * fits), "left room empty"


@given(context=st.floats(200, 3_000), growth=st.floats(1.0, 1.5))
def test_given_responses_that_grow_then_places_follow_and_preemptions_stay_rare(context, growth):
    server = ModelledServer(context_tok=context)
    controller = ConcurrencyController(first_context_tok=4_000, most_per_server=999)
    too_full = 0
    for _ in range(20):
        controller.open({"a": LOAD})
        capacities = controller.capacities
        load = server.after(capacities["a"])
        too_full += load.preemptions * server.context_tok > TOO_MANY * load.generated_tok
        controller.end_round({"a": load}, capacities)
        server.context_tok *= 1 + (growth - 1) / 20
    assert too_full <= 1


def preempting(count: int, generated_tok: int = 10_000) -> EngineLoad:
    return replace(LOAD, preemptions=count, generated_tok=generated_tok)


def test_given_preemptions_in_mid_round_then_places_are_taken_once_and_given_back_one_by_one():
    controller = ConcurrencyController(first_context_tok=1_000, most_per_server=999)
    controller.open({"a": LOAD})
    full = controller.capacities["a"]
    assert controller.steer("a", preempting(full), inflight=full)
    braked = controller.capacities["a"]
    assert braked == int(0.9 * full)
    assert not controller.steer("a", preempting(full), inflight=full), "cut again before it had come down"
    seen = []
    for k in range(full):
        controller.steer("a", preempting(full, 20_000 + 1_000 * k), inflight=braked)
        seen.append(controller.capacities["a"])
    assert seen == sorted(seen) and braked < seen[-1] <= full
    controller.end_round({"a": LOAD}, {"a": full})
    assert controller.capacities["a"] >= full


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100_000), st.integers(0, 100)), max_size=50))
def test_given_any_reports_then_a_server_keeps_a_place_and_never_gets_more_than_it_began_with(reports):
    controller = ConcurrencyController(first_context_tok=1_000, most_per_server=999)
    controller.open({"a": LOAD})
    first, preemptions, generated = controller.capacities["a"], 0, 0
    for more_preemptions, more_tok, inflight in reports:
        preemptions, generated = preemptions + more_preemptions, generated + more_tok
        controller.steer("a", preempting(preemptions, generated), inflight=min(inflight, first))
        assert 1 <= controller.capacities["a"] <= first


def test_given_rounds_that_preempt_too_much_then_less_of_the_room_is_filled_and_more_again_later():
    controller = ConcurrencyController(first_context_tok=1_000, most_per_server=999)
    controller.open({"a": LOAD})
    before = controller.capacities["a"]
    controller.end_round({"a": preempting(100)}, {"a": before})
    assert controller.capacities["a"] == int(0.9 * 0.85 * 100) and "less" in controller.reason
    for _ in range(10):
        controller.end_round({"a": preempting(0)}, {"a": controller.capacities["a"]})
    assert controller.capacities["a"] == int(MOST_SHARE * 100) > before


def test_given_few_requests_then_nothing_is_concluded_from_them():
    controller = ConcurrencyController(first_context_tok=1_000, most_per_server=999)
    controller.open({"a": LOAD})
    before = controller.capacities
    controller.end_round({"a": ModelledServer().after(3)}, {"a": 3})
    assert controller.capacities == before
    controller.end_round({}, {})
    assert controller.capacities == before


def test_given_servers_that_join_and_leave_then_places_follow():
    controller = ConcurrencyController(first_context_tok=1_000, most_per_server=999)
    controller.open({"a": LOAD})
    controller.join("b", replace(LOAD, kv_room_tok=50_000))
    assert controller.capacities == {"a": 85, "b": 42}
    controller.leave("a")
    controller.leave("gone")
    assert controller.total == 42
    assert not controller.steer("a", preempting(1000), inflight=10), "reports of a server that has left change nothing"
