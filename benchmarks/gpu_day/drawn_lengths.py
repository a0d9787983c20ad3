"""An agent loop whose answers have drawn lengths, the same for every system: lognormal, p99 / median 8."""

import random
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

MEDIAN_SHARE = 1 / 8  # of the longest answer, which is the 99th percentile
SIGMA = 0.894  # ln 8 / 2.326, the normal distribution's 99th percentile


class DrawnLengths(SingleTurnAgentLoop):
    """A single turn that ends at its drawn length and nowhere else; run again, at the same one."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        drawn = random.Random(f"{kwargs['raw_prompt']} {kwargs['session_id']}").lognormvariate(0.0, SIGMA)
        length_tok = min(self.response_length, max(1, round(drawn * MEDIAN_SHARE * self.response_length)))
        return await super().run(sampling_params | {"max_tokens": length_tok, "ignore_eos": True}, **kwargs)
