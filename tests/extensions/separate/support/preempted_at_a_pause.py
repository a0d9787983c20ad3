"""vLLM without room for two requests to grow, and two of one prompt: one is preempted, and waits when generation is
paused. What it and later requests find in the prefix cache under the next weights.
"""

import asyncio
from typing import Any

import pytest

from recipe.async_dapo.engines.protocol import MORE
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo_lab.sampling_meter import SamplingMeter

from ....support.scripted_engine import start_server
from ....support.waiting_at_a_pause import (
    BLOCK_TOK,
    ENGINE,
    PROMPT,
    AsyncEngineArgs,
    AsyncLLM,
    counts,
    described,
    vllms_own,
)

ROOM_BLOCKS = 60  # either has room for itself
PARAMS = {"max_tokens": 50 * BLOCK_TOK, "logprobs": True, "ignore_eos": True}


class Preemptions:
    """A stat logger: what vLLM's scheduler says of the requests that it took out and put in again.

    It tells of the first one when that request runs again, in what the other one has left; from the second time on,
    that one waits until the other has ended.
    """

    def __init__(self) -> None:
        self.waits = asyncio.Event()  # one that was taken out again
        self._has_happened = False
        self.counts = {"prefilled_again": 0, "found_tok": 0}

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if self._has_happened and scheduler_stats is not None and scheduler_stats.num_waiting_reqs:
            self.waits.set()
        if iteration_stats is not None and iteration_stats.num_preempted_reqs:
            self._has_happened = True
        if scheduler_stats is not None:
            seen = scheduler_stats.prefix_cache_stats
            self.counts = {
                "prefilled_again": self.counts["prefilled_again"] + seen.preempted_requests,
                "found_tok": self.counts["found_tok"] + seen.preempted_hits,
            }

    def log(self) -> None: ...


async def to_its_end(server: AsyncDAPOServer, name: str) -> list[tuple[int, int]]:
    """Its segments."""
    output = await server.generate(PROMPT, dict(PARAMS), name)
    segments = list(output.extra_fields["segments"])
    while output.stop_reason == MORE:
        output = await server.reattach(name)
        segments += output.extra_fields["segments"]
    return segments


async def main(model: str) -> dict[str, Any]:
    from recipe.async_dapo.extensions.separate.holding_server import HoldingServer

    arguments = ENGINE | {"max_num_seqs": 2, "max_model_len": ROOM_BLOCKS * BLOCK_TOK}
    arguments["num_gpu_blocks_override"] = ROOM_BLOCKS
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))
    meter = SamplingMeter.attach(engine)
    engine.logger_manager.stat_loggers.append(preemptions := Preemptions())
    server = start_server(pytest.MonkeyPatch(), engine, HoldingServer, delivery_tok=BLOCK_TOK)
    both = [asyncio.create_task(to_its_end(server, name)) for name in ("first", "second")]
    await preemptions.waits.wait()
    await server.stop_generation("hold")
    before, waiting = preemptions.counts, [sum(meter._waiting.values()), vllms_own("num_requests_waiting")]
    await server.set_global_steps(1)
    await server.allow_generation()
    segments = [await each for each in both]
    later = [await server.generate(PROMPT, PARAMS | {"max_tokens": 4}, name) for name in ("third", "fourth")]
    counted = counts(meter) | {"waiting": waiting}
    engine.shutdown()
    return {
        "counts": counted,
        "segments": segments,
        "before": before,
        "after": preemptions.counts,
        "later": [described(output) for output in later],
    }
