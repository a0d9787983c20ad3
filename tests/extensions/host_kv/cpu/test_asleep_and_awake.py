"""A real engine that sleeps over a weight update: a request whose KV was in host memory meanwhile goes on with it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ....support.composed_runs import write_model
from ....support.engine_program import seen_by

LIMIT_S = 550  # below the limit of a test
PROGRAM = f"{__package__.removesuffix('.cpu')}.support.asleep_and_awake"
ROOM_BLOCKS = {1: 1000, 2: 9}  # in host memory, by the engine's ranks: more than all of it, and too few


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("engine") / "model")


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


def test_given_sleep_and_new_weights_then_a_request_goes_on_with_its_own_blocks_and_no_other_meets_them(model):
    [seen] = seen_by((PROGRAM, model, 1, ROOM_BLOCKS[1]), timeout_s=LIMIT_S)
    assert_only_own_blocks_are_met(seen, ROOM_BLOCKS[1])


@pytest.mark.nightly
def test_given_an_engine_of_two_ranks_and_little_room_then_a_request_goes_on_with_the_blocks_that_it_still_has(model):
    [seen] = seen_by((PROGRAM, model, 2, ROOM_BLOCKS[2]), timeout_s=LIMIT_S)
    assert_only_own_blocks_are_met(seen, ROOM_BLOCKS[2])
