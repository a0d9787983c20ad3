"""A multi-turn task for a model that cannot call tools: every response counts as a call."""

import asyncio
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser

from recipe.async_dapo.calls import recorded

from . import till

TURNS = 3


@ToolParser.register("every_response_calls")
class EveryResponseCalls(ToolParser):
    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        return text, [FunctionCall(name="next_problem", arguments=f'{{"length": {len(text)}}}')]


class NextProblemLoop(ToolAgentLoop):
    """Of two trajectories one runs verl's loop, and one a loop of its own at temperature 0. Both note each interruption
    and each end. They have no state to keep, but the run decides how many of them stay alive over a stop."""

    keeps_state = True

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        is_own = sample["session_id"] % 2 == 0
        of = {"uid": sample["uid"], "session": sample["session_id"], "is_own": is_own}
        try:
            output = await (self._run_greedy if is_own else super().run)(sampling_params, **sample)
        except asyncio.CancelledError:
            till.note(**of, is_end=False)
            raise
        till.note(**of, is_end=True, prompt=output.prompt_ids, response=output.response_ids)
        return output

    async def _run_greedy(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        messages = list(sample["raw_prompt"])
        request_id = uuid4().hex
        token_ids = await self.ct_build_initial_tokens(messages)
        prompt_len_tok = len(token_ids)
        mask: list[int] = []
        log_probs: list[float] = []
        for turn in range(TURNS):
            output = await self.server_manager.generate(
                request_id, prompt_ids=token_ids, sampling_params=sampling_params | {"temperature": 0.0}
            )
            merged, mask, log_probs = await self.ct_merge_assistant_token(
                token_ids, output.token_ids, mask, log_probs, assistant_logprobs=output.log_probs
            )
            token_ids = merged.token_ids
            if turn == TURNS - 1 or len(mask) >= self.response_length:
                break
            answer = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            is_slow = len(answer) % 5 == 0 and sampling_params["temperature"] > 0  # a validation is not kept waiting
            problem = await recorded(till.pay, len(answer), till.SLOW_S if is_slow else 0.0)
            before = [*messages, {"role": "assistant", "content": answer}]
            messages = [*before, {"role": "user", "content": problem}]
            merged, mask, log_probs = await self.ct_merge_context_msg(before, messages, token_ids, mask, log_probs)
            token_ids = merged.token_ids
        return AgentLoopOutput(
            prompt_ids=token_ids[:prompt_len_tok],
            response_ids=token_ids[prompt_len_tok:][: self.response_length],
            response_mask=mask[: self.response_length],
            response_logprobs=log_probs[: self.response_length],
            num_turns=2 * (turn + 1),
            metrics=AgentLoopMetrics(),
            extra_fields=output.extra_fields,
        )
