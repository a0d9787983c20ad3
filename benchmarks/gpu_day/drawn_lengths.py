"""An agent loop whose answers have drawn lengths, the same for every system: lognormal, p99 / median 8."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from benchmarks.gpu_day.turns import TURN, wait_for

MEDIAN_SHARE = 1 / 8  # of the longest answer, which is the 99th percentile
SIGMA = 0.894  # ln 8 / 2.326, the normal distribution's 99th percentile

_asked: Counter[str] = Counter()


class DrawnLengths(SingleTurnAgentLoop):
    """A single turn that ends at its drawn length and nowhere else."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        if TURN in os.environ:
            await asyncio.to_thread(wait_for, Path(os.environ[TURN]))
        prompt = str(kwargs["raw_prompt"])
        _asked[prompt] += 1
        drawn = random.Random(f"{prompt} {_asked[prompt]}").lognormvariate(0.0, SIGMA)
        length_tok = min(self.response_length, max(1, round(drawn * MEDIAN_SHARE * self.response_length)))
        return await super().run(sampling_params | {"max_tokens": length_tok, "ignore_eos": True}, **kwargs)
