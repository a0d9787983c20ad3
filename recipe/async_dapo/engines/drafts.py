"""vLLM's proposer of drafts from siblings: `speculative_config.method=custom_class`. `core/drafts.py` decides.

vLLM hands a proposer tokens and no names. The worker extension binds it to the model runner, whose batch has the names
of its requests; a name tells the prompt group.
"""

import time
from array import array
from typing import Any

import torch
from vllm.config import VllmConfig

from ..core.draft_price import MOST_DRAFT_TOK
from ..core.drafts import Drafter, RequestName

_FORGET_EVERY = 64  # steps between two looks at which requests have left the engine


class SiblingDrafts:
    """Made by vLLM in each of its workers; proposes nothing before it is bound.

    With tensor parallelism every rank proposes, and vLLM takes what the first one does.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._runner: Any = None
        self._drafter = Drafter()
        self._known: set[str] = set()  # requests that have begun, those that get no drafts too
        self._steps = 0
        self._spent_s, self._spent_steps, self._last_s = 0.0, 0, 0.0

    def load_model(self, model: torch.nn.Module) -> None:
        """vLLM calls it; there is none."""

    def bind(self, model_runner: Any) -> None:
        self._runner = model_runner

    def learn(self, group: str, answers: list[bytes]) -> int:
        """
        Args:
            answers: to the group's prompt, at an earlier visit: tokens, int32.

        Returns:
            How many of them found no room.
        """
        return self._drafter.learn(group, [array("i", answer).tolist() for answer in answers])

    def take_step_s(self) -> float:
        """What it takes of a step, mean since the last call [s]."""
        step_s = self._spent_s / max(1, self._spent_steps)
        self._spent_s, self._spent_steps = 0.0, 0
        return step_s

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any
    ) -> list[list[int]]:
        """A draft for each request of the batch.

        Args:
            sampled_token_ids: in this step; empty for a request whose prompt is not yet computed.
            num_tokens_no_spec: context of each request, these tokens included.
            token_ids_cpu: context of each request.
        """
        if self._runner is None:
            return [[] for _ in sampled_token_ids]
        began_s = time.monotonic()
        proposed = self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, began_s)
        self._last_s = time.monotonic() - began_s
        self._spent_s += self._last_s
        self._spent_steps += 1
        return proposed

    def _propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, now_s: float
    ) -> list[list[int]]:
        if self._drafter.rests(len(sampled_token_ids)):
            self._known.clear()
            return [[] for _ in sampled_token_ids]
        self._steps += 1
        if self._steps % _FORGET_EVERY == 0:
            self._forget()
        request_ids = self._runner.input_batch.req_ids
        for row, (request_id, tokens) in enumerate(zip(request_ids, sampled_token_ids, strict=True)):
            if tokens and request_id not in self._known:
                self._begin(request_id, token_ids_cpu[row], int(num_tokens_no_spec[row]) - len(tokens))
        return self._drafter.step(request_ids, sampled_token_ids, now_s, self._last_s)

    def _begin(self, request_id: str, context: Any, context_tok: int) -> None:
        """
        Args:
            context_tok: before what was sampled in this step.
        """
        self._known.add(request_id)
        name = RequestName.parse(request_id)
        params = self._runner.requests[request_id].sampling_params
        # A stop string ends an answer at the step that completes it: tokens behind it in the same step would stay.
        if name is None or params is None or params.stop:
            self._drafter.note_prefill()
        else:
            self._drafter.begin(request_id, name, context[name.prompt_tok : context_tok].tolist())

    def _forget(self) -> None:
        running = set(self._runner.requests)
        self._drafter.keep_only(running)
        self._known &= running


SPECULATIVE_CONFIG = {
    "method": "custom_class",
    "model": f"{SiblingDrafts.__module__}.{SiblingDrafts.__qualname__}",
    "num_speculative_tokens": MOST_DRAFT_TOK,
}


def room_for_drafts(most_tok: int, *, max_model_len: int, most_context_tok: int) -> int:
    """An engine's `max_model_len`: vLLM drops all drafts of a step in which one sequence comes so near to the limit.

    Args:
        most_tok: of a draft.
        max_model_len: without drafts [tokens].
        most_context_tok: that the model has positions for [tokens].
    """
    return max(max_model_len, min(max_model_len + most_tok, most_context_tok))
