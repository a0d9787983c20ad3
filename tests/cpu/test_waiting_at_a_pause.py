"""A real engine: a request that waits at the pause begins under the next weights with nothing of the old ones, one that
was preempted goes on with what it had; and what servers report of their load is what vLLM's own metrics say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.quickstart.activation import cpu_environment

from ..support.composed_runs import write_model

ROOT = Path(__file__).parents[2]


def seen_by(module: str, tmp_path: Path) -> dict[str, Any]:
    """What a module of `tests.support` writes, alone with its engine."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{module}", str(write_model(tmp_path / "model"))],
        cwd=ROOT,
        env=cpu_environment(os.environ, code_path=ROOT),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_given_a_request_that_waits_at_the_pause_when_weights_change_then_it_meets_no_block_of_the_old_ones(tmp_path):
    seen = seen_by("waiting_at_a_pause", tmp_path)
    assert seen["piece"]["stop_reason"] == "more" and seen["frozen"]["stop_reason"] == "paused", seen
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
def test_given_a_request_that_was_preempted_at_the_pause_then_it_meets_its_own_blocks_and_later_ones_do_not(tmp_path):
    seen = seen_by("preempted_at_a_pause", tmp_path)
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
