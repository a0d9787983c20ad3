"""vLLM plugin: temperatures and the like reach drafted tokens in the CPU build.

Where drafts are verified, each request's temperature, top-k and top-p are repeated for its drafted tokens. The CPU
build's kernel takes whole numbers: it is handed a converted copy, fills that, and leaves the caller's memory as it was
found, so that drafts are verified at whatever temperatures lay there.
"""

import os

import torch


class RepeatForDrafts:
    """A kernel as vLLM calls them, `kernel[grid](...)`, that repeats a value of each request for its drafted tokens."""

    def __getitem__(self, grid: tuple[int, ...]) -> "RepeatForDrafts":
        return self

    def __call__(
        self,
        output: torch.Tensor,
        values: torch.Tensor,
        last_tokens: torch.Tensor,
        replace_from: float,
        replace_to: float,
        **_: int,
    ) -> None:
        """Args:
        output: of each drafted token.
        values: of each request; those that are `replace_from` count as `replace_to`.
        last_tokens: number of drafted tokens up to the end of each request.
        """
        drafted = torch.diff(last_tokens, prepend=last_tokens.new_zeros(1))
        values = values.masked_fill(values == replace_from, replace_to)
        output.copy_(values.repeat_interleave(drafted.long()))


def register() -> None:
    """Called by vLLM in every process before its model runner takes the kernels of the CPU build; may be called more
    than once.
    """
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils.expand_kernel = RepeatForDrafts()
