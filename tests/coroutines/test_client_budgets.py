"""How many tokens a turn may generate: budget of the response, limit of a round."""

import asyncio

import pytest

from recipe.async_dapo.engines.engine_requests import TrajectoryInterrupted

from ..support.client_world import ALL_TOKENS, LATENCY_S, ending_of, world
from ..support.simulation import simulate


def test_given_a_token_budget_when_interrupted_and_resumed_then_all_segments_count_against_it() -> None:
    async def main() -> None:
        it = world()
        task = asyncio.create_task(ending_of(it.generate(max_tokens=4)))
        await asyncio.sleep(LATENCY_S * 5 + 2.1)
        await it.balancer.stop()
        await task
        assert len(it.trajectory.raw_response_ids) == 2
        await it.balancer.open()
        output = await it.generate(max_tokens=4)
        assert output.token_ids == ALL_TOKENS[:4]
        assert it.trajectory.turns[0].finish_reason == "length"
        await it.is_quiet()

    simulate(main())


def test_given_a_limit_of_tokens_a_round_when_it_is_reached_then_the_turn_is_set_aside_and_goes_on_next_time() -> None:
    async def main() -> None:
        it = world()
        lens_tok = []
        for _ in range(5):
            turn = it.generate()
            it.recorder.round_limit_tok = 2
            ending = await ending_of(turn)
            lens_tok.append((len(it.trajectory.raw_response_ids), type(ending)))
        assert lens_tok[:3] == [(2, TrajectoryInterrupted), (4, TrajectoryInterrupted), (6, type(None))]
        assert it.trajectory.raw_response_ids == ALL_TOKENS
        await it.is_quiet()

    simulate(main())


@pytest.mark.parametrize("max_tokens", [0, -3])
def test_given_a_loop_that_has_spent_its_budget_when_it_generates_then_it_gets_one_token_as_from_verl(
    max_tokens,
) -> None:
    async def main() -> None:
        it = world()
        assert (await it.generate(max_tokens=max_tokens)).token_ids == ALL_TOKENS[:1]

    simulate(main())
