"""An agent loop with an environment: the model guesses a number, and is told whether it was too low or too high."""

import random
import re
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.calls import recorded

TURNS = 4


async def judge(secret: int, answer: str) -> str:
    """The environment: here a comparison; a game server, a browser or a sandbox is asked in the same way."""
    guesses = re.findall(r"\d+", answer)
    if not guesses:
        return "Say a number."
    return "Right." if int(guesses[-1]) == secret else "Too low." if int(guesses[-1]) < secret else "Too high."


class Guessing(AgentLoopBase):
    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        secret = await recorded(random.randrange, 100)  # the same number when the loop runs again
        messages = list(sample["raw_prompt"])
        request_id = uuid4().hex
        token_ids = await self.ct_build_initial_tokens(messages)
        mask: list[int] = []
        log_probs: list[float] = []
        for turn in range(TURNS):
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=token_ids, sampling_params=sampling_params
            )
            merged, mask, log_probs = await self.ct_merge_assistant_token(
                token_ids, output.token_ids, mask, log_probs, assistant_logprobs=output.log_probs
            )
            token_ids = merged.token_ids
            answer = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            verdict = await recorded(judge, secret, answer)  # asked once, however often the loop runs
            if verdict == "Right." or turn == TURNS - 1 or len(mask) >= self.rollout_config.response_length:
                break
            before = [*messages, {"role": "assistant", "content": answer}]
            messages = [*before, {"role": "user", "content": verdict}]
            merged, mask, log_probs = await self.ct_merge_context_msg(before, messages, token_ids, mask, log_probs)
            token_ids = merged.token_ids
        limit_tok = self.rollout_config.response_length
        prompt_len_tok = len(token_ids) - len(mask)
        return AgentLoopOutput(
            prompt_ids=token_ids[:prompt_len_tok],
            response_ids=token_ids[prompt_len_tok:][:limit_tok],
            response_mask=mask[:limit_tok],
            response_logprobs=log_probs[:limit_tok],
            num_turns=2 * (turn + 1),
            metrics=AgentLoopMetrics(),
            extra_fields=output.extra_fields,
        )
