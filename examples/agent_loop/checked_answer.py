"""An agent loop of two turns: the model answers, is asked to check its answer, and answers again."""

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

CHECK = {"role": "user", "content": "Check it. Write the answer again."}
TURNS = 2


class CheckedAnswer(AgentLoopBase):
    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        messages = list(sample["raw_prompt"])
        request_id = uuid4().hex  # the same for all turns: they go to the same engine
        token_ids = await self.ct_build_initial_tokens(messages)
        mask: list[int] = []  # 1: the model's token, 0: ours
        log_probs: list[float] = []
        limit_tok = self.rollout_config.response_length
        for turn in range(TURNS):
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=token_ids, sampling_params=sampling_params
            )
            merged, mask, log_probs = await self.ct_merge_assistant_token(
                token_ids, output.token_ids, mask, log_probs, assistant_logprobs=output.log_probs
            )
            token_ids = merged.token_ids
            if turn == TURNS - 1:
                break
            answer = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            before = [*messages, {"role": "assistant", "content": answer}]
            messages = [*before, CHECK]
            merged, mask, log_probs = await self.ct_merge_context_msg(before, messages, token_ids, mask, log_probs)
            token_ids = merged.token_ids
            if len(mask) >= limit_tok:  # no room for another answer
                break
        prompt_len_tok = len(token_ids) - len(mask)
        return AgentLoopOutput(
            prompt_ids=token_ids[:prompt_len_tok],
            response_ids=token_ids[prompt_len_tok:][:limit_tok],
            response_mask=mask[:limit_tok],
            response_logprobs=log_probs[:limit_tok],
            num_turns=2 * TURNS,
            metrics=AgentLoopMetrics(),
            extra_fields=output.extra_fields,
        )
