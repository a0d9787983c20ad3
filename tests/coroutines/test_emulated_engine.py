"""Our server on an emulated engine, in virtual time: the promises of the real one, at the planner's speed."""

import asyncio
from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo_lab.plan.costs import StepCost
from recipe.async_dapo_lab.plan.engine import Engine
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.rehearsal.answers import AnswerBook, Vocabulary
from recipe.async_dapo_lab.rehearsal.engine import LOG_PROB, EmulatedEngine
from recipe.async_dapo_lab.rehearsal.options import CompressedClock

from ..support.scripted_engine import start_server
from ..support.simulation import at_each, now_s, settle

SPEEDUP = 4.0
STEP_S = 1.0  # virtual
LENGTH_TOK = 12
PROMPT = [30, 31, 32]
WORDS = Vocabulary(digits=tuple(range(10)), filler=20, right=(21,), wrong=(22,), end_of_text=23)
GRID_S = [quarter / 4 for quarter in range(16)]


def emulated(*, kv_room_tok: int = 10_000, max_num_seqs: int = 16, prefill_token_s: float = 0.0) -> EmulatedEngine:
    cost = StepCost(
        base_s=STEP_S,
        per_request_s=0.0,
        per_kv_token_s=0.0,
        prefill_token_s=prefill_token_s,
        prefill_token2_s=0.0,
        kv_room_tok=kv_room_tok,
    )
    lengths = LogNormalLengths(median_tok=LENGTH_TOK, sigma=0.0, correlation=0.0)
    book = AnswerBook(lengths, 1.0, WORDS, limit_tok=100, n=8, seed=0)
    clock = CompressedClock(SPEEDUP, origin_s=0.0, real_s=asyncio.get_running_loop().time)
    return EmulatedEngine(Engine(cost, max_num_seqs=max_num_seqs), book, clock)


def generate(
    server: AsyncDAPOServer, request_id: str = "request", prompt: list[int] | None = None, **params: Any
) -> asyncio.Task[TokenOutput]:
    params = {"max_tokens": 100, "logprobs": True, **params}
    return asyncio.create_task(server.generate(prompt or PROMPT, params, request_id), name="remote generate")


def answer(number: int) -> list[int]:
    """What the model answers to the prompt at its n-th time; the first of n is right."""
    return [number, 0, 0, 0, *[WORDS.filler] * (LENGTH_TOK - 6), 22 if number % 8 else 21, WORDS.end_of_text]


def assert_whole(output: TokenOutput) -> None:
    assert output.log_probs == [LOG_PROB] * len(output.token_ids)
    assert sum(count for _, count in output.extra_fields["segments"]) == len(output.token_ids)


async def test_given_a_request_when_it_ends_then_it_took_the_modelled_time_and_has_its_answer(monkeypatch) -> None:
    output = await generate(start_server(monkeypatch, emulated(prefill_token_s=2.0)))
    assert now_s() == pytest.approx((LENGTH_TOK * STEP_S + 2.0 * len(PROMPT)) / SPEEDUP)
    assert output.token_ids == answer(0)
    assert (output.stop_reason, output.extra_fields["finish_reason"]) == ("completed", "stop")
    assert_whole(output)


@at_each(GRID_S)
async def test_given_a_stop_at_any_time_then_requests_come_back_at_once_and_continue_where_they_were(
    monkeypatch, stop_s: float
):
    server = start_server(monkeypatch, emulated(max_num_seqs=2))
    calls = []
    for number in range(3):
        calls.append(generate(server, f"request-{number}"))
        await asyncio.sleep(0.2)
    await asyncio.sleep(max(0.0, stop_s - now_s()))
    stopped_s = now_s()
    await server.stop_generation()
    await settle()
    assert now_s() == pytest.approx(stopped_s, abs=1e-3) and all(call.done() for call in calls)
    assert (await generate(server, "late")).stop_reason == "aborted"
    await server.allow_generation()
    whole = []
    for number, call in enumerate(calls):
        tokens = call.result().token_ids
        assert_whole(call.result())
        if call.result().stop_reason == "aborted":
            tokens = tokens + (await generate(server, f"again-{number}", PROMPT + tokens)).token_ids
        whole.append(tokens)
    assert sorted(whole) == [answer(number) for number in range(3)], "an answer was lost or drawn twice"


async def test_given_a_limit_of_tokens_when_it_is_reached_then_the_answer_goes_on_in_the_next_request(monkeypatch):
    server = start_server(monkeypatch, emulated())
    first = await generate(server, max_tokens=5)
    assert (len(first.token_ids), first.extra_fields["finish_reason"]) == (5, "length")
    second = await generate(server, "again", PROMPT + first.token_ids, max_tokens=95)
    assert first.token_ids + second.token_ids == answer(0)
    assert second.extra_fields["finish_reason"] == "stop"
