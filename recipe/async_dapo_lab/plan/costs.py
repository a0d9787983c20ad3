"""How long things take: a decode step, a prefill, a training step; and how many tokens a server's KV cache holds."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ...async_dapo.config.values import ConfigError
from .hardware import Accelerator
from .model_size import ModelShape
from .trainer_memory import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConstants:
    """What an inference server reaches of its hardware, unless calibrated.

    The first four are of an engine that was measured, the fifth was published, the others are assumed: see
    docs/plan_check_rehearse.md.
    """

    bandwidth_share: float = 1.0  # of peak, while weights and KV cache are read
    step_overhead_ms: float = 1.881  # scheduling and launches of one decode step
    request_overhead_ms: float = 0.0446  # sampling and output handling, per running request and step
    prefill_flop_share: float = 0.622  # of peak, during prefill
    all_reduce_us: float = 10.0  # of each of a layer's two sums over a server's GPUs: 0.5 MB, 4 H100, vllm #24532
    other_memory_gb: float = 5.0  # activations, CUDA graphs, communication buffers, per GPU
    stop_s: float = 0.05  # from the stop to idle engines
    host_gb_s: float = 25.0  # of KV blocks to host memory, and back, per GPU
    synchronous_step_ms: float = 2.0  # of a decode step where the next one is not planned meanwhile
    draft_step_ms: float = 3.0  # of a decode step with drafts, on the engine's host
    draft_request_ms: float = 0.05  # the same, per running request
    verify_flop_share: float = 0.55  # of peak, while drafted tokens are verified


DEFAULT_ENGINE = "measured"
ENGINES: dict[str, ServerConstants] = {
    # vLLM 0.24.0 with a model of 8B parameters' shape, alone on one H100: assets/gpu/constants.json.
    DEFAULT_ENGINE: ServerConstants(),
    # Fitted to five rollouts that CoPRIS published, of vLLM in the middle of 2025; the bandwidth was assumed.
    "published-2025": ServerConstants(
        bandwidth_share=0.77, step_overhead_ms=5.0, request_overhead_ms=0.12, prefill_flop_share=0.15
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """What drafts do to a decode step, on average over requests and steps.

    A drafted token is verified beside the one that is sampled anyway: the weights and the cache are read once for both,
    so it costs arithmetic only. Rejected tokens' room in the cache is not counted.
    """

    accepted_tok: float  # of a request, beside the one that is sampled anyway
    drafted_tok: float = 0.0  # of a request
    step_s: float = 0.0
    per_request_s: float = 0.0
    per_kv_token_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A server's decode step with a batch of b requests, which read k tokens of KV cache, takes

        base_s + experts_s * (1 - missed^b) + per_request_s * b + per_kv_token_s * k

    and every request of the batch gets one token by it. Admitting a request adds `prefill_s` to its first step.
    In the k tokens of cache, a request's windows and state count as `request_kv_tok` beside its context. Of a mixture
    of experts, a step reads those that any of its tokens is sent to, as if each chose among all alike.
    """

    base_s: float
    per_request_s: float
    per_kv_token_s: float
    prefill_token_s: float
    prefill_token2_s: float
    kv_room_tok: int
    request_kv_tok: int = 0
    experts_s: float = 0.0  # to read all experts
    missed: float = 0.0  # share of the experts that a token is not sent to

    def batch_s(self, batch: Any) -> Any:
        """A step without what reads the cache; of one batch, or of an array of them."""
        return self.base_s + self.experts_s * (1 - self.missed**batch) + self.per_request_s * batch

    def decode_s(self, steps: int, batch: int, kv_tok: int) -> float:
        """Seconds of `steps` steps in a row, the first of which reads `kv_tok` tokens.

        Every step adds a token per request to the cache, so the sum over steps is a parabola.
        """
        reads = steps * kv_tok + batch * (steps * (steps - 1) // 2)
        return steps * self.batch_s(batch) + self.per_kv_token_s * reads

    def steps_within(self, seconds: float, batch: int, kv_tok: int) -> int:
        """The largest number of whole steps that end within `seconds`: the root of `decode_s`."""
        curve = 0.5 * self.per_kv_token_s * batch
        slope = self.batch_s(batch) + self.per_kv_token_s * kv_tok - curve
        root = 2 * seconds / (slope + (slope * slope + 4 * curve * seconds) ** 0.5)
        steps = max(0, int(root))
        while steps > 0 and self.decode_s(steps, batch, kv_tok) > seconds:
            steps -= 1
        while self.decode_s(steps + 1, batch, kv_tok) <= seconds:
            steps += 1
        return steps

    def prefill_s(self, tokens: int) -> float:
        """Seconds to admit a request: to compute the KV cache of its context, with quadratic attention."""
        return tokens * (self.prefill_token_s + self.prefill_token2_s * tokens)

    def times(self, factor: float) -> "StepCost":
        """Of an engine that takes so much longer for everything."""
        seconds = ("base_s", "experts_s", "per_request_s", "per_kv_token_s", "prefill_token_s", "prefill_token2_s")
        return replace(self, **{name: factor * getattr(self, name) for name in seconds})

    def with_drafts(self, drafts: DraftCost) -> "StepCost":
        """Of an engine that verifies drafts: what is a step here is the part of one that yields a token of each
        request. That some requests have more tokens accepted than others is not modelled.
        """
        tokens = 1 + drafts.accepted_tok
        return replace(
            self,
            base_s=(self.base_s + drafts.step_s) / tokens,
            experts_s=self.experts_s / tokens,
            missed=self.missed ** (1 + drafts.drafted_tok),
            per_request_s=(self.per_request_s + drafts.per_request_s) / tokens,
            per_kv_token_s=(self.per_kv_token_s + drafts.per_kv_token_s) / tokens,
        )


def kv_room_tok(
    model: ModelShape,
    accelerator: Gpu,
    constants: ServerConstants,
    *,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
) -> int:
    """Tokens that the KV cache of one server holds.

    Raises:
        ConfigError: when the weights do not fit; it says on how many GPUs they would.
    """
    model = model.copied(tensor_parallel_size)
    usable = (accelerator.memory_gb * gpu_memory_utilization - constants.other_memory_gb) * 1e9
    if model.weight_bytes >= usable * tensor_parallel_size:
        raise ConfigError(
            "tensor_parallel_size",
            tensor_parallel_size,
            f"{model.name} has {model.weight_bytes / 1e9:.1f} GB of weights, a server "
            f"{max(0.0, usable) * tensor_parallel_size / 1e9:.1f} GB for them; {_remedy(model, accelerator, usable)}",
        )
    return int((usable * tensor_parallel_size - model.weight_bytes) / model.kv_bytes_per_token)


def _remedy(model: ModelShape, accelerator: Gpu, usable_bytes: float) -> str:
    other = f"a larger accelerator than {accelerator.name}, or a higher gpu_memory_utilization"
    if usable_bytes <= 0:
        return f"use {other}"
    fits = (n for n in model.tensor_parallel_sizes if n * usable_bytes > model.weight_bytes)
    least = next(fits, None)
    return f"use {other}" if least is None else f"it needs at least {least} GPUs per server, {other}"


def step_cost(
    model: ModelShape,
    accelerator: Accelerator,
    constants: ServerConstants,
    *,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    longest_context_tok: int,
) -> StepCost:
    """The cost model of one server of `tensor_parallel_size` GPUs.

    Raises:
        ConfigError: when the weights do not fit, or the KV cache has no room for one whole trajectory.
    """
    gpus = tensor_parallel_size
    bytes_per_s = constants.bandwidth_share * accelerator.bandwidth_tb_s * 1e12 * gpus
    flop_per_s = constants.prefill_flop_share * accelerator.bf16_tflop_s * 1e12 * gpus
    room_tok = kv_room_tok(
        model,
        accelerator,
        constants,
        tensor_parallel_size=gpus,
        gpu_memory_utilization=gpu_memory_utilization,
    )
    model = model.copied(gpus)
    request_kv_tok = ceil(model.request_bytes(longest_context_tok) / model.kv_bytes_per_token)
    if room_tok < longest_context_tok + request_kv_tok:
        raise ConfigError(
            "max_response_length",
            longest_context_tok,
            f"prompt and response are longer than the {max(0, room_tok - request_kv_tok)} tokens of KV cache that a "
            "server has room for; shorten them, raise gpu_memory_utilization, or use more GPUs per server",
        )
    sums_s = 2 * model.layers * constants.all_reduce_us / 1e6 if gpus > 1 else 0.0
    reads_s = (1 - model.expert_share) * model.weight_bytes / bytes_per_s
    return StepCost(
        base_s=constants.step_overhead_ms / 1e3 + sums_s + reads_s,
        experts_s=model.expert_share * model.weight_bytes / bytes_per_s,
        missed=1 - model.experts_per_token / model.experts if model.experts else 0.0,
        per_request_s=constants.request_overhead_ms / 1e3,
        per_kv_token_s=model.kv_bytes_per_token / bytes_per_s,
        prefill_token_s=model.flops_per_token / flop_per_s,
        prefill_token2_s=model.attention_flops_per_token2 / flop_per_s,
        kv_room_tok=room_tok,
        request_kv_tok=request_kv_tok,
    )


def draft_cost(
    model: ModelShape,
    accelerator: Accelerator,
    constants: ServerConstants,
    *,
    tensor_parallel_size: int,
    accepted_tok: float,
    drafted_tok: float,
) -> DraftCost:
    """By arithmetic.

    Args:
        accepted_tok, drafted_tok: of a request and step, on average.
    """
    flop_per_s = constants.verify_flop_share * accelerator.bf16_tflop_s * 1e12 * tensor_parallel_size
    token_s = model.flops_per_token / flop_per_s
    attention_s = 2 * model.attention_flops_per_token2 / flop_per_s  # of one more token, for each of its context
    return DraftCost(
        accepted_tok=accepted_tok,
        drafted_tok=drafted_tok,
        step_s=constants.draft_step_ms / 1e3,
        per_request_s=constants.draft_request_ms / 1e3 + drafted_tok * token_s,
        per_kv_token_s=drafted_tok * attention_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """Seconds that the trainer needs between two rollouts: given as `fixed_s` and `fixed_log_prob_s`, or by arithmetic.

    With activation checkpointing, a training pass is four forward passes; recomputing log-probs is one.
    """

    model: ModelShape
    flop_per_s: float  # of all GPUs together, reached
    fixed_s: float | None = None
    fixed_log_prob_s: float = 0.0  # of a pass over a batch, where `fixed_s` is given

    def train_s(self, tokens: float, tokens_squared: float) -> float:
        """A training pass over sequences.

        Args:
            tokens: sum of their lengths.
            tokens_squared: sum of their squared lengths.
        """
        if self.fixed_s is not None:
            return self.fixed_s
        return 4 * self.log_prob_s(tokens, tokens_squared)

    def log_prob_s(self, tokens: float, tokens_squared: float) -> float:
        """A forward pass over sequences."""
        if self.fixed_s is not None:
            return self.fixed_log_prob_s if tokens else 0.0
        return self.model.forward_flops(tokens, tokens_squared) / self.flop_per_s
