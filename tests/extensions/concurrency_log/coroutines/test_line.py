"""The line on what may be in flight names what limits it."""

from types import SimpleNamespace
from typing import Any

import pytest

from ....support.simulated_options import AUTO, options
from ....support.simulated_worker import Task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "max_num_seqs", "limit"),
    [
        ({}, 256, "48 by over_sampling_batch_size (engines 512, over_sampling_batch_size 48; "),
        ({}, 2, "4 by engines (engines 4, "),
        ({"max_staleness": 0}, 256, "24 by max_staleness (max_staleness 24, engines 512, "),
        ({"max_partial_share": 0.01}, 256, "33 by max_partial_share (engines 512, max_partial_share 33; "),
        ({"rollout_pool_size": 7}, 256, "7 by rollout_pool_size (rollout_pool_size 7, engines 7, "),
        ({"rollout_pool_size": None}, 256, "12 by max_concurrent_prompts (max_concurrent_prompts 12, engines "),
    ],
)
def test_given_rounds_then_a_line_for_each_says_what_limits_the_next_one(
    start, caplog, changes: dict, max_num_seqs: int, limit: str
) -> None:
    cluster = start(
        options(extensions=("concurrency_log",), **(AUTO | changes)),
        task=Task(length_of=lambda prompt_ids: 40 + prompt_ids[1]),
    )
    for server in cluster.servers:
        server.max_num_seqs = max_num_seqs
    trainer: Any = SimpleNamespace(replay_buffer=cluster.buffer)
    cluster.buffer.observers["concurrency_log"].training_begins(trainer)
    caplog.set_level("INFO", logger="recipe.async_dapo.extensions.concurrency_log")
    cluster.steps(4)
    lines = [record.message for record in caplog.records if " in flight; next: at most " in record.message]
    assert [line.split(":")[0] for line in lines] == [f"step {step}" for step in (1, 2, 3, 4)]
    assert f"next: at most {limit}" in lines[-1]
    assert "tokens a request, steered 0 times)" in lines[-1]
