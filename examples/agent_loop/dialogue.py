"""What an agent loop of several turns hands on: its messages as tokens, and which of them the model has generated."""

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput


class Dialogue:
    """A model's turns, with messages in between.

    Args:
        loop: whose engines, tokenizer and options it has.
        messages: the prompt.
        sampling_params: of all turns.
    """

    def __init__(
        self, loop: AgentLoopBase, messages: Iterable[dict[str, Any]], sampling_params: dict[str, Any]
    ) -> None:
        self._loop = loop
        self._messages = list(messages)
        self._sampling_params = sampling_params
        self._request_id = uuid4().hex  # the same for all turns: they go to the same engine
        self._token_ids: list[int] = []
        self._mask: list[int] = []  # 1: the model's token, 0: a message's
        self._log_probs: list[float] = []
        self._extra_fields: dict[str, Any] = {}
        self._experts: Any = None  # of every token, where they are replayed
        self.turns = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another turn."""
        return len(self._mask) >= self._loop.rollout_config.response_length

    async def ask(self) -> str:
        """The model's next turn."""
        loop = self._loop
        if not self._token_ids:
            self._token_ids = await loop.ct_build_initial_tokens(self._messages)
        output = await loop.server_manager.generate(
            request_id=self._request_id, prompt_ids=self._token_ids, sampling_params=self._sampling_params
        )
        merged, self._mask, self._log_probs = await loop.ct_merge_assistant_token(
            self._token_ids, output.token_ids, self._mask, self._log_probs, assistant_logprobs=output.log_probs
        )
        self._token_ids, self._extra_fields = merged.token_ids, output.extra_fields
        self._experts = output.routed_experts
        self.turns += 1
        answer = loop.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        self._messages.append({"role": "assistant", "content": answer})
        return answer

    async def tell(self, content: str, *, role: str = "user") -> None:
        """A message to the model."""
        before = list(self._messages)
        self._messages.append({"role": role, "content": content})
        merged, self._mask, self._log_probs = await self._loop.ct_merge_context_msg(
            before, self._messages, self._token_ids, self._mask, self._log_probs
        )
        self._token_ids = merged.token_ids

    def output(self) -> AgentLoopOutput:
        """All of it, for training."""
        limit_tok = self._loop.rollout_config.response_length
        prompt_len_tok = len(self._token_ids) - len(self._mask)
        return AgentLoopOutput(
            prompt_ids=self._token_ids[:prompt_len_tok],
            response_ids=self._token_ids[prompt_len_tok:][:limit_tok],
            response_mask=self._mask[:limit_tok],
            response_logprobs=self._log_probs[:limit_tok],
            num_turns=2 * self.turns,
            metrics=AgentLoopMetrics(),
            routed_experts=self._experts,
            extra_fields=self._extra_fields,
        )
