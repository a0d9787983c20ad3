"""What a server answers: why it stopped, and the parts of an output that verl's `TokenOutput` has no field for."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast

from verl.workers.rollout.replica import TokenOutput

from ..core.concurrency import EngineLoad

# Stop reasons, beside those of verl's servers.
ABORTED = "aborted"  # ended before its time; also verl's word
MORE = "more"  # a piece: the engine goes on with the request
UNKNOWN = "unknown"  # no such request in this engine
ERROR = "error"  # of the engine's own, as where its grammar refuses what it has sampled; vLLM's word


class OutputExtra(TypedDict):
    """`TokenOutput.extra_fields` of our servers."""

    segments: list[tuple[int, int]]  # (policy version, tokens), in order; they add up to the output's tokens
    finish_reason: str | None  # the engine's own; None while the request is in the engine
    load: EngineLoad | None  # what the server says of its engine; None if it has none
    # With router replay: position in the context of the first row, and rows [tokens, layers, top-k].
    routes: NotRequired[tuple[int, Any]]


# Counts that verl's servers give with a request's last output, some of them in `extra_fields`.
_PREEMPTED = "num_preempted"
FOUND = "num_cached_tokens"  # prompt tokens that were in a cache
_COUNTS = (FOUND, "spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")


def make_output(
    token_ids: list[int],
    log_probs: list[float],
    *,
    stop_reason: str | None,
    extra: OutputExtra,
    counts: Mapping[str, int] | None = None,
) -> TokenOutput:
    """Args:
    counts: as of `counts_of`.
    """
    counts = dict(counts or {})
    return TokenOutput(
        token_ids=token_ids,
        log_probs=log_probs,
        stop_reason=stop_reason,
        num_preempted=counts.pop(_PREEMPTED, None),
        extra_fields={**extra, **counts},
    )


def counts_of(output: TokenOutput) -> dict[str, int]:
    """What the engine says of a request that is over: preemptions, prompt tokens that it found in its prefix cache,
    speculative decoding. What it does not say is left out.
    """
    counts = {name: output.extra_fields.get(name) for name in _COUNTS} | {_PREEMPTED: output.num_preempted}
    return {name: count for name, count in counts.items() if count is not None}


def extra_of(output: TokenOutput) -> OutputExtra:
    return cast(OutputExtra, output.extra_fields)
