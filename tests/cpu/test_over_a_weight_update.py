"""A real engine over a weight update: a request that waits at the pause begins under the next weights with nothing of
the old ones, one that was preempted goes on with what it had, and so does one whose KV was in host memory meanwhile.
And what servers report of their load is what vLLM's own metrics say."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ..support.composed_runs import write_model
from ..support.engine_program import seen_by

LIMIT_S = 550  # below the limit of a test
HOST_KV = "asleep_and_awake"
ROOM_BLOCKS = {1: 1000, 2: 9}  # in host memory, by the engine's ranks: more than all of it, and too few


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("engine") / "model")


@pytest.fixture(scope="module")
def seen(model: Path) -> dict[str, Any]:
    """What the programs of every run of the tests say, by name."""
    programs = [("waiting_at_a_pause", model), (HOST_KV, model, 1, ROOM_BLOCKS[1])]
    return dict(zip([name for name, *_ in programs], seen_by(*programs, timeout_s=LIMIT_S), strict=True))


def test_given_a_request_that_waits_at_the_pause_when_weights_change_then_it_meets_no_block_of_the_old_ones(seen):
    seen = seen["waiting_at_a_pause"]
    assert seen["piece"]["stop_reason"] == "more", seen
    assert seen["waiting"] == {"stop_reason": "aborted", "tokens": 0, "cached_tok": None}
    assert seen["again"] == {"stop_reason": "completed", "tokens": 4, "cached_tok": 0}, "it began with old blocks"
    usage = seen["kv_usage"]  # while one request was running, and grew
    assert usage["meter"] == usage["vllm"] > 0
    assert abs(usage["meter"] - usage["expected"]) <= 1.5 * usage["one_block"]
    least_tok, most_tok = usage["least_and_most_tok"]
    assert least_tok <= usage["mean_tok"] <= most_tok
    generated, preempted = seen["counts"]["generated_tok"], seen["counts"]["preemptions"]
    assert generated[0] == generated[1] >= 8 and preempted == [0, 0]
    assert seen["same"]["cached_tok"] > 0, "the prefix cache does not work at all: this test shows nothing"


@pytest.mark.nightly
def test_given_a_request_that_was_preempted_at_the_pause_then_it_meets_its_own_blocks_and_later_ones_do_not(model):
    [seen] = seen_by(("preempted_at_a_pause", model), timeout_s=LIMIT_S)
    for segments in seen["segments"]:
        assert [version for version, _ in segments] == sorted(version for version, _ in segments)
        assert {version for version, _ in segments} == {0, 1}
    assert seen["after"]["prefilled_again"] > seen["before"]["prefilled_again"], "none was preempted at the pause"
    assert seen["after"]["found_tok"] > seen["before"]["found_tok"], "blocks of its own version are reused"
    generated, preempted = seen["counts"]["generated_tok"], seen["counts"]["preemptions"]
    assert generated[0] == generated[1] and preempted[0] == preempted[1] > 0, "not what vLLM's own metrics say"
    assert seen["counts"]["waiting"] == [1, 1]
    under_new_weights, again = seen["later"]
    assert under_new_weights["cached_tok"] == 0 and again["cached_tok"] > 0


def assert_only_own_blocks_are_met(seen: dict[str, Any], room_blocks: int) -> None:
    assert seen["emptied"] == [True] * 4
    whole = [(tok - 1) // 16 * 16 for tok in seen["context_tok"]]  # the last token is computed in any case
    room_tok = (room_blocks - 1) * 16
    for fresh, own in seen["same_weights"]:
        assert fresh["found_tok"] == 0
        assert own["tokens"] == fresh["tokens"]
        torch.testing.assert_close(own["log_probs"], fresh["log_probs"], rtol=0, atol=1e-5)
    found = [own["found_tok"] for _, own in seen["same_weights"]]
    # Where all is full, the last block may end with a token that was computed and is in no answer.
    assert min(sum(whole[:2]), room_tok) - sum(found) in ((0,) if room_tok > sum(whole[:2]) else (0, 16))
    fresh, own = seen["new_weights"]
    assert (fresh["found_tok"], own["found_tok"]) == (0, found[0])
    assert found[0] == 0 or abs(fresh["log_probs"][0] - own["log_probs"][0]) > 1e-4, "not with the old blocks"
    assert seen["last"]["found_tok"] == min(whole[2], room_tok) >= found[0]
    assert seen["vllm_found_tok"] >= sum(found) + own["found_tok"] + seen["last"]["found_tok"]
    unwanted, interrupted = seen["beside_an_unwanted_one"]
    assert unwanted["found_tok"] == 0 < interrupted["found_tok"]


def test_given_sleep_and_new_weights_then_a_request_goes_on_with_its_own_blocks_and_no_other_meets_them(seen):
    assert_only_own_blocks_are_met(seen[HOST_KV], ROOM_BLOCKS[1])


@pytest.mark.nightly
def test_given_an_engine_of_two_ranks_and_little_room_then_a_request_goes_on_with_the_blocks_that_it_still_has(model):
    [seen] = seen_by((HOST_KV, model, 2, ROOM_BLOCKS[2]), timeout_s=LIMIT_S)
    assert_only_own_blocks_are_met(seen, ROOM_BLOCKS[2])
