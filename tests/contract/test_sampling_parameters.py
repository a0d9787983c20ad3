"""Every sampling parameter of the installed vLLM acts over an interruption as in one whole request, or is refused."""

import msgspec
from vllm import SamplingParams

from recipe.async_dapo.engines.client import continued, not_continued

# They look at one token, or at prompt and response alike; or they are about what is returned.
ALIKE = {
    "n",  # an agent loop asks for one
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "flat_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "output_kind",
    "stream_interval",
    "skip_clone",
    "output_text_buffer_length",
    "logit_bias",
    "allowed_token_ids",
    "routed_experts_prompt_start",
    "skip_reading_prefix_cache",
}
BY_THE_CLIENT = {"max_tokens", "stop"}  # counted, and found over the seam


def test_every_parameter_is_alike_moved_on_or_refused() -> None:
    names = {field.name for field in msgspec.structs.fields(SamplingParams) if not field.name.startswith("_")}
    assert names >= ALIKE | BY_THE_CLIENT
    for name in sorted(names - ALIKE - BY_THE_CLIENT):
        assert continued({name: 9}, 3, 90)[name] != 9 or not_continued({name: 9}) == [name], name
