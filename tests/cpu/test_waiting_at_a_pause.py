"""A real engine: a request that waits at the pause begins under the next weights with nothing of the old ones; and the
KV usage that servers report is what vLLM's own metrics say."""

import json
import os
import subprocess
import sys
from pathlib import Path

from recipe.async_dapo.cpu.activation import cpu_environment

from ..support.composed_runs import write_model

ROOT = Path(__file__).parents[2]


def test_given_a_request_that_waits_at_the_pause_when_weights_change_then_it_meets_no_block_of_the_old_ones(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.waiting_at_a_pause", str(write_model(tmp_path / "model"))],
        cwd=ROOT,
        env=cpu_environment(os.environ, code_path=ROOT),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["piece"]["stop_reason"] == "more" and seen["frozen"]["stop_reason"] == "paused", seen
    assert seen["waiting"] == {"stop_reason": "aborted", "tokens": 0, "cached_tok": None}
    assert seen["again"] == {"stop_reason": "completed", "tokens": 4, "cached_tok": 0}, "it began with old blocks"
    usage = seen["kv_usage"]  # while one request was running, and grew
    assert usage["meter"] == usage["vllm"] > 0
    assert abs(usage["meter"] - usage["expected"]) <= 1.5 * usage["one_block"]
    assert seen["same"]["cached_tok"] > 0, "the prefix cache does not work at all: this test shows nothing"
