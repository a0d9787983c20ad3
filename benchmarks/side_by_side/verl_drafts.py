"""This recipe's drafts in engines that verl drives, where groups and answers have no names. vLLM loads it by its path.

A request belongs to the prompt with which its context begins; where the context is longer, it continues an answer.
"""

import sys
from typing import Any

from vllm.config import VllmConfig

from recipe.async_dapo.core.drafts import RequestName
from recipe.async_dapo.engines.drafts import SiblingDrafts


class VerlDrafts(SiblingDrafts):
    """A proposer that finds siblings by their prompts; what is continued counts as another answer."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__(vllm_config)
        self._prompts: dict[int, set[tuple[int, ...]]] = {}  # length -> those of it

    def propose(self, *arguments: Any, **options: Any) -> list[list[int]]:
        if self._runner is None:
            self.bind(sys._getframe(1).f_locals["self"])  # the model runner calls
        return super().propose(*arguments, **options)

    def _begin(self, request_id: str, context: Any, context_tok: int) -> None:
        self._known.add(request_id)
        tokens = context[:context_tok].tolist()
        beginnings = {length: tuple(tokens[:length]) for length in self._prompts if length <= context_tok}
        known = (prompt for length, prompt in beginnings.items() if prompt in self._prompts[length])
        prompt = next(known, tuple(tokens))
        self._prompts.setdefault(len(prompt), set()).add(prompt)
        name = RequestName(group=str(prompt), answer=request_id, prompt_tok=len(prompt))
        self._drafter.begin(request_id, name, tokens[len(prompt) :])
