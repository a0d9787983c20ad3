"""A real engine over a weight update: a request that waits at the pause begins under the next weights with nothing of
the old ones, and one that was preempted goes on with what it had. And what servers report of their load is what vLLM's
own metrics say."""

from pathlib import Path
from typing import Any

import pytest

from ....support.composed_runs import write_model
from ....support.engine_program import seen_by

LIMIT_S = 550  # below the limit of a test


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("engine") / "model")


@pytest.fixture(scope="module")
def seen(model: Path) -> dict[str, Any]:
    return seen_by(("waiting_at_a_pause", model), timeout_s=LIMIT_S)[0]


def test_given_a_request_that_waits_at_the_pause_when_weights_change_then_it_meets_no_block_of_the_old_ones(seen):
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
    [seen] = seen_by(("tests.extensions.separate.support.preempted_at_a_pause", model), timeout_s=LIMIT_S)
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
