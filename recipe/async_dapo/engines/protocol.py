"""What a server answers: why it stopped, and the parts of an output that verl's `TokenOutput` has no field for."""

from typing import TypedDict, cast

from verl.workers.rollout.replica import TokenOutput

from ..core.concurrency import EngineLoad

# Stop reasons, beside those of verl's servers.
ABORTED = "aborted"  # ended before its time; also verl's word
PAUSED = "paused"  # still in the engine, with its KV cache
MORE = "more"  # a piece: the engine goes on with the request
UNKNOWN = "unknown"  # no such request in this engine


class OutputExtra(TypedDict):
    """`TokenOutput.extra_fields` of our servers."""

    global_steps: int | None  # policy version of the engine when it answered; verl's name
    segments: list[tuple[int, int]]  # (policy version, tokens), in order; they add up to the output's tokens
    finish_reason: str | None  # the engine's own; None while the request is in the engine
    load: EngineLoad | None  # what the server says of its engine; None if it has none


def make_output(
    token_ids: list[int], log_probs: list[float], *, stop_reason: str | None, extra: OutputExtra
) -> TokenOutput:
    return TokenOutput(token_ids=token_ids, log_probs=log_probs, stop_reason=stop_reason, extra_fields=dict(extra))


def extra_of(output: TokenOutput) -> OutputExtra:
    return cast(OutputExtra, output.extra_fields)
