"""What vLLM's engine hands out, made of tokens alone."""

from functools import cache
from typing import Any

from vllm.logprobs import FlatLogprobs, Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams

LOG_PROB = -1.0  # of every token, in the engines and in the trainer [nats]


def output_of(
    request_id: str, prompt_ids: list[int], params: SamplingParams, token_ids: list[int], finish_reason: str | None
) -> RequestOutput:
    """A chunk of an answer; `finish_reason` is None while it goes on."""
    log_probs: Any = None
    if params.logprobs is not None:
        log_probs = _flat(token_ids) if params.flat_logprobs else [_certain(token) for token in token_ids]
    completion = CompletionOutput(
        index=0,
        text="",
        token_ids=token_ids,
        cumulative_logprob=None,
        logprobs=log_probs,
        finish_reason=finish_reason,
    )
    return RequestOutput(
        request_id=request_id,
        prompt=None,
        prompt_token_ids=prompt_ids,
        prompt_logprobs=None,
        outputs=[completion],
        finished=finish_reason is not None,
    )


def _flat(token_ids: list[int]) -> FlatLogprobs:
    count = len(token_ids)
    return FlatLogprobs(
        start_indices=list(range(count)),
        end_indices=list(range(1, count + 1)),
        token_ids=token_ids,
        logprobs=[LOG_PROB] * count,
        ranks=[1] * count,
        decoded_tokens=[None] * count,
    )


@cache
def _certain(token_id: int) -> dict[int, Logprob]:
    return {token_id: Logprob(logprob=LOG_PROB, rank=1)}
