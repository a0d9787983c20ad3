"""verl's client that continues interrupted requests, with its pause in compressed time."""

import asyncio
from typing import Any

from verl.utils import normalize_token_ids
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

PAUSE_S = 1.0  # before an interrupted request is sent again, in `FullyAsyncLLMServerClient` [virtual s]


class ContinuingClient(LLMServerClient):
    """What verl's `FullyAsyncLLMServerClient` does for responses of text; it has its pause in the middle of a loop.

    Args:
        speedup: virtual seconds in a real one.
    """

    def __init__(self, *args: Any, speedup: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pause_s = PAUSE_S / speedup

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        prompt_ids = normalize_token_ids(prompt_ids)
        budget_tok = sampling_params.get("max_tokens", self.config.actor_rollout_ref.rollout.response_length)
        whole = TokenOutput(token_ids=[], log_probs=[], num_preempted=0)
        versions: list[int] = []
        while True:
            part = await super().generate(
                request_id,
                prompt_ids=prompt_ids + whole.token_ids,
                sampling_params=sampling_params | {"max_tokens": budget_tok - len(whole.token_ids)},
                **kwargs,
            )
            whole.token_ids += part.token_ids
            whole.log_probs += part.log_probs or []
            versions.append(part.extra_fields["global_steps"])
            whole.stop_reason = part.stop_reason
            if len(whole.token_ids) >= budget_tok or part.stop_reason != "aborted":
                break
            await asyncio.sleep(self._pause_s)
        whole.extra_fields |= {
            "global_steps": versions[-1],
            "min_global_steps": versions[0],
            "max_global_steps": versions[-1],
            "num_cached_tokens": None,
        }
        return whole
