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

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .summed import Summed

ENOUGH_TOK = 1000  # of these, one that is 3 nats off by accident moves the mean by 0.016
GOOD_NATS = 0.01  # above it: a warning
MOST_NATS = 0.1  # above it: the run ends

_MODEL, _ROLLOUT = "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
_FEW_WORDS = 0.02  # share of a vocabulary that only fills it up to a round number, and that a trained model never picks


class LogProbsDisagree(RuntimeError):
    """Engines do not sample from the trainer's policy."""


@dataclass(frozen=True, slots=True)
class NewestTokens(Summed):
    """The tokens that were sampled by the weights that have scored them.

    Attributes:
        count: how many [tokens].
        k3_nats: sum of k3 over them [nats].
    """

    count: int = 0
    k3_nats: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """What a run does with its model that can set engines and trainer apart.

    Attributes:
        packs: `use_remove_padding`: sequences lie in one row.
        split_over: ranks that share a sequence (Ulysses) [count].
        layers: its `layer_types`.
        has_fla: the package flash-linear-attention is installed.
        ties_head: config.json says that the output layer is the embeddings.
        vocabulary: words that the model has [count].
        tokens: words that the tokenizer has [count].
    """

    model_type: str
    attention: str
    layers: frozenset[str]
    packs: bool
    split_over: int
    has_fla: bool
    trainer_dtype: str
    engine_dtype: str
    quantization: str | None
    kv_cache_dtype: str | None
    lora_rank: int
    ties_head: bool
    vocabulary: int
    tokens: int

    @property
    def is_flash(self) -> bool:
        return "flash" in self.attention


def judge(seen: NewestTokens, *, setup: Callable[[], ModelSetup]) -> str | None:
    """What there is to warn of; empty where engines and trainer agree; None while there are too few tokens to say.

    Args:
        seen: all since the run's start.

    Raises:
        LogProbsDisagree: with figures and causes. With few tokens, if the mean of enough cannot be within the limit any
            more: k3 is never negative.
    """
    at_least_nats = seen.k3_nats / max(seen.count, ENOUGH_TOK)
    if at_least_nats <= MOST_NATS and seen.count < ENOUGH_TOK:
        return None
    if at_least_nats <= GOOD_NATS:
        return ""
    causes = "; ".join(f"({number}) {cause}" for number, cause in enumerate(likely_causes(setup()), start=1))
    found = (
        f"engines and trainer give different log-probs to the {seen.count} tokens that the newest weights have "
        f"sampled: k3 is {seen.k3_nats / seen.count:.3g} nats a token"
    )
    if at_least_nats > MOST_NATS:
        raise LogProbsDisagree(f"{found}, at most {MOST_NATS:g} trains; likely causes, likeliest first: {causes}")
    return f"{found}, up to {GOOD_NATS:g} is healthy; possible causes: {causes}"


def likely_causes(setup: ModelSetup) -> Iterator[str]:
    """Of this run's options, the likeliest one first, each with its remedy."""
    unknown = setup.vocabulary - setup.tokens
    beyond = (
        f"the model has {setup.vocabulary} words and its tokenizer {setup.tokens}: engines never sample the others, "
        "and the trainer gives them probability; cut the model's embeddings to the tokenizer's size "
        "(model.resize_token_embeddings), or take the tokenizer that it was trained with"
    )
    if unknown > _FEW_WORDS * setup.vocabulary:
        yield beyond
    if setup.split_over > 1:
        yield (
            f"ulysses_sequence_parallel_size={setup.split_over} splits sequences with {setup.model_type} and "
            f"attn_implementation={setup.attention}; set 1"
        )
    if setup.packs:
        yield (
            f"{_MODEL}use_remove_padding=True packs sequences, which {setup.model_type} with attn_implementation="
            f"{setup.attention} may not keep apart; set False"
        )
    if setup.quantization is not None:
        yield f"{_ROLLOUT}quantization={setup.quantization}; leave it out"
    if setup.kv_cache_dtype is not None:
        yield f"{_ROLLOUT}engine_kwargs.vllm.kv_cache_dtype={setup.kv_cache_dtype}; leave it out"
    if setup.engine_dtype != setup.trainer_dtype:
        yield f"{_ROLLOUT}dtype={setup.engine_dtype}, and the trainer computes in {setup.trainer_dtype}; set the same"
    if setup.lora_rank:
        yield (
            f"{_MODEL}lora_rank={setup.lora_rank}: engines may lack the adapter, or a part of it; set "
            f"{_MODEL}lora.merge=True"
        )
    if setup.ties_head:
        yield (
            "the model's config.json has tie_word_embeddings=true: if its checkpoint has an output layer of its own, "
            "engines leave it out; set it to false there"
        )
    if 0 < unknown <= _FEW_WORDS * setup.vocabulary:
        yield beyond
    yield f"vLLM and transformers compute {setup.model_type} differently; try another attn_implementation or version"
