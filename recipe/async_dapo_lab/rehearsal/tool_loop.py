"""An agent loop for answers that an emulated engine cuts into turns: it calls a tool after each but the last."""

import asyncio
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from ...async_dapo.calls import recorded
from ..plan.workload import ToolCalls
from .answers import NUMBER_TOK, number_of


class ToolCallingLoop(AgentLoopBase):
    """The tool takes its modelled time and says nothing.

    Args:
        speedup: virtual seconds in a real one.
        count, median_s, sigma, seed: of `ToolCalls`.
    """

    def __init__(
        self, *args: Any, speedup: float, count: int, median_s: float, sigma: float, seed: int, **parts: Any
    ) -> None:
        super().__init__(*args, **parts)
        self._speedup = speedup
        self._tools = ToolCalls(count=count, median_s=median_s, sigma=sigma, seed=seed)

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        request_id, limit_tok = uuid4().hex, self.rollout_config.response_length
        prompt_ids = await self.ct_build_initial_tokens(list(sample["raw_prompt"]))
        response_ids: list[int] = []
        log_probs: list[float] = []
        turns = 0
        while True:
            turns += 1
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=prompt_ids + response_ids, sampling_params=sampling_params
            )
            response_ids, log_probs = response_ids + output.token_ids, log_probs + (output.log_probs or [])
            if response_ids[-1] == self.tokenizer.eos_token_id or len(response_ids) >= limit_tok:
                break
            prompt, session = number_of(prompt_ids), number_of(response_ids[:NUMBER_TOK])
            await recorded(asyncio.sleep, self._tools.takes_s(prompt, session, len(response_ids)) / self._speedup)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response_mask=[1] * len(response_ids),
            response_logprobs=log_probs or None,
            num_turns=2 * turns,
            metrics=AgentLoopMetrics(),
            extra_fields=output.extra_fields,
        )
