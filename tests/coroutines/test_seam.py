"""Sampling parameters over a seam: a request that is interrupted and continued gives what one whole request would."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.trajectory import Turn
from recipe.async_dapo.engines.client import continued, not_continued
from recipe.async_dapo.engines.stop_strings import cut, end_of_stop
from recipe.async_dapo.recording import append_tokens

from ..support.client_world import ALL_TOKENS, stopped_at, world

PIECES = ["a", "b", "ab", "ba", "</", "s>", "<", "/s", ">"]


def decode(tokens: Any) -> str:
    return "".join(PIECES[token] for token in tokens)


def engine(tokens: list[int], stop: list[str], min_tokens: int) -> int | None:
    """How many tokens a whole request has, when a stop string ends it."""
    for end in range(1, len(tokens) + 1):
        if end > min_tokens and any(string in decode(tokens[:end]) for string in stop):
            return end
    return None


@given(
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=12),
    st.lists(st.sampled_from(["</s>", "aba", "bb"]), min_size=1, max_size=2),
    st.data(),
)
def test_given_a_stop_string_over_a_seam_then_the_turn_ends_where_a_whole_request_would(tokens, stop, data) -> None:
    whole = engine(tokens, stop, 0)
    seam = data.draw(st.integers(1, len(tokens)))
    if whole is not None and whole <= seam:
        return  # the first request has ended
    after = engine(tokens[seam:], stop, 0)  # what the second request sees
    generated = tokens if after is None else tokens[: seam + after]
    end = end_of_stop(generated, seam, {"stop": stop}, decode)
    assert (end if end is not None else None if after is None else seam + after) == whole


def test_given_parameters_of_a_whole_request_when_it_is_continued_then_they_are_moved_on() -> None:
    params = {"min_tokens": 5, "seed": 7, "temperature": 0.5}
    assert continued(params, 3, 90) == {"max_tokens": 90, "min_tokens": 2, "seed": 10, "temperature": 0.5}
    assert continued(params, 9, 90)["min_tokens"] == 0
    assert continued(params, 1, 2)["min_tokens"] == 2, "a round's limit of tokens comes sooner, and engines compare"
    assert continued({"temperature": 0.5}, 3, 90) == {"max_tokens": 90, "temperature": 0.5}
    assert end_of_stop([0, 1], 1, {"stop": "ab", "min_tokens": None}, decode) == 2, "None is no limit"
    assert not_continued({"presence_penalty": 0.0, "bad_words": [], "repetition_penalty": 1.2}) == []
    assert not_continued({"frequency_penalty": 0.1}) == ["frequency_penalty"]


def test_given_a_turn_that_is_cut_then_its_segments_keep_their_versions() -> None:
    turn = Turn(prompt_digest=b"p", prompt_len_tok=1)
    append_tokens(turn, [1, 2, 3, 4, 5], [0.0] * 5, [(0, 2), (1, 2), (2, 1)])
    cut(turn, 3)
    assert turn.raw_response_ids == [1, 2, 3] and len(turn.rollout_log_probs) == 3
    assert [segment.policy_version for segment in turn.segments] == [0, 1]


TWO_TOKENS_S = 1.25 + 2.1


async def test_given_a_stop_string_that_the_second_request_cannot_see_then_the_client_ends_the_turn_there() -> None:
    it = world()
    it.client.tokenizer = SimpleNamespace(decode=lambda tokens: "".join(f"<{token}>" for token in tokens))
    stop = "".join(f"<{token}>" for token in ALL_TOKENS[1:4])
    await stopped_at(it, TWO_TOKENS_S, stop=[stop])
    output = await it.generate(stop=[stop])
    assert output.token_ids == ALL_TOKENS[:4] and it.trajectory.turns[0].finish_reason == "stop"


@pytest.mark.parametrize("continues", [True, False])
async def test_given_what_no_request_can_carry_over_then_it_is_refused_where_requests_are_continued_else_begun_anew(
    continues: bool,
) -> None:
    it = world()
    it.client._continues = continues
    if continues:
        with pytest.raises(ConfigError, match=r"presence_penalty=0.5: .*strategy=consistent"):
            await it.generate(presence_penalty=0.5)
        return
    await stopped_at(it, TWO_TOKENS_S, presence_penalty=0.5)
    output = await it.generate(presence_penalty=0.5)
    assert output.token_ids == ALL_TOKENS and it.recorder.counts.diverged_tok == 2
