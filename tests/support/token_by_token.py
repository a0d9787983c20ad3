"""What `async_dapo_lab/plan/engine.py` computes in closed form, one token at a time: the reference of its tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from recipe.async_dapo_lab.plan.costs import StepCost


@dataclass(frozen=True, slots=True)
class Arrival:
    time_s: float
    context_tok: int
    response_tok: int


@dataclass(slots=True)
class _Sequence:
    name: int
    context_tok: int
    left_tok: int


@dataclass(slots=True)
class Served:
    """When each arrival had all its tokens, and how often one was preempted."""

    finished_s: dict[int, float]
    preemptions: int = 0


def serve(cost: StepCost, arrivals: Sequence[Arrival], *, max_num_seqs: int) -> Served:
    """Continuous batching as vLLM does it: leave, preempt the last admitted, admit, one token for everybody."""
    served = Served({})
    waiting: list[_Sequence] = []
    running: list[_Sequence] = []
    coming = list(enumerate(arrivals))
    now_s = 0.0
    while coming or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, coming[0][1].time_s)
        while coming and coming[0][1].time_s <= now_s:
            name, arrival = coming.pop(0)
            waiting.append(_Sequence(name, arrival.context_tok, arrival.response_tok))
        prefill_s = _rebatch(cost, waiting, running, served, max_num_seqs)
        now_s += prefill_s + cost.decode_s(1, len(running), _cached(cost, running))
        for one in running:
            one.context_tok += 1
            one.left_tok -= 1
        for one in [one for one in running if one.left_tok == 0]:
            running.remove(one)
            served.finished_s[one.name] = now_s
    return served


def _rebatch(
    cost: StepCost, waiting: list[_Sequence], running: list[_Sequence], served: Served, max_num_seqs: int
) -> float:
    """Returns the seconds of prefill."""
    preempted_before = served.preemptions
    while _cached(cost, running) + len(running) > cost.kv_room_tok:
        waiting.insert(0, running.pop())
        served.preemptions += 1
    prefill_s = 0.0
    while waiting and served.preemptions == preempted_before and len(running) < max_num_seqs:
        if _cached(cost, running) + _cached(cost, waiting[:1]) + len(running) + 1 > cost.kv_room_tok:
            break
        running.append(waiting.pop(0))
        prefill_s += cost.prefill_s(running[-1].context_tok)
    return prefill_s


def _cached(cost: StepCost, requests: Sequence[_Sequence]) -> int:
    return sum(one.context_tok + cost.request_kv_tok for one in requests)
