"""Whether engines and trainer compute the same log-probs: judged once after each start of a run, at the first tokens
that the newest weights have sampled. Where a step has few of them, as after a resume, those of the next ones are added.

The trainer scores these tokens with the very weights that sampled them. No policy is old yet, so their k3 between
engine and trainer is the error between two implementations of one model, and nothing else. Corrections for old tokens
would hide it, and training would follow it.

The limits come from pairs of engine and trainer that were measured, in nats a token:

    right   1e-12 to 1e-8   both in fp32, dense or with experts
            1e-4 to 2e-3    LoRA merged in bf16, images, hybrid attention with the engine in bf16
            0.010 to 0.029  engine in bf16, tiny random models with experts and linear attention: the worst of them
    wrong   0.03            Qwen3.5, packed, without flash-linear-attention
            0.6 to 9        Qwen3-Next and LFM2, packed, gpt-oss, packed without flash attention, Ulysses with sdpa,
                            a vocabulary larger than the tokenizer's (1.6 and 8.9)

No right pair reached 0.1. All models were tiny and random.
"""

import math
from dataclasses import dataclass

from ...core.summed import Summed
from ...record.keys import GOOD_FRESH_K3

ENOUGH_TOK = 1000  # of these, one that is 3 nats off by accident moves the mean by 0.016
MOST_NATS = 0.1  # above it: the run ends
MOST_NOT_FINITE = 0.001  # share of tokens without a finite ratio; above it: the run ends

CAUSES = (
    "engines of another precision than the trainer (rollout.dtype, rollout.quantization, kv_cache_dtype); "
    "model.use_remove_padding=True or ulysses_sequence_parallel_size > 1 with an attention that does not keep "
    "sequences apart (set False, and 1); a vocabulary larger than the tokenizer's (cut the embeddings to its size); "
    "a LoRA adapter that engines lack (model.lora.merge=True); a tied output layer with weights of its own; a model "
    "that vLLM and transformers compute differently (another attn_implementation or version)"
)


class LogProbsDisagree(RuntimeError):
    """Engines do not sample from the trainer's policy."""


@dataclass(frozen=True, slots=True)
class NewestTokens(Summed):
    """The tokens that were sampled by the weights that have scored them.

    Attributes:
        count: how many [tokens].
        k3_nats: sum of k3 over those with a finite ratio [nats].
        not_finite: those without one [tokens].
    """

    count: int = 0
    k3_nats: float = 0.0
    not_finite: int = 0


def judge(seen: NewestTokens) -> str | None:
    """What there is to warn of; empty where engines and trainer agree; None while there are too few tokens to say.

    Args:
        seen: all since the run's start.

    Raises:
        LogProbsDisagree: with figures and causes. With few tokens, if the mean of enough cannot be within the limit any
            more: k3 is never negative.
    """
    enough = max(seen.count, ENOUGH_TOK)
    k3_nats = math.inf if seen.not_finite > MOST_NOT_FINITE * enough else seen.k3_nats
    at_least_nats = k3_nats / enough
    if at_least_nats <= MOST_NATS and seen.count < ENOUGH_TOK:
        return None
    if at_least_nats <= GOOD_FRESH_K3:
        return ""
    without = f" ({seen.not_finite} without a finite one)" if seen.not_finite else ""
    found = (
        f"engines and trainer give different log-probs to the {seen.count} tokens that the newest weights have "
        f"sampled{without}: k3 is {k3_nats / seen.count:.3g} nats a token"
    )
    if not at_least_nats <= MOST_NATS:  # also if it is no number
        raise LogProbsDisagree(f"{found}, at most {MOST_NATS:g} trains; likely causes: {CAUSES}")
    return f"{found}, up to {GOOD_FRESH_K3:g} is healthy; possible causes: {CAUSES}"
