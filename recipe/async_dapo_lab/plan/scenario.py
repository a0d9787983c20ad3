"""A setting to simulate: model, hardware, workload and batch."""

from dataclasses import dataclass, field, replace
from math import ceil

from ...async_dapo.config.extensions import declared, load, not_here
from ...async_dapo.config.values import ConfigError, ImportanceSampling
from .calibration import MeasuredCosts
from .costs import DraftCost, ServerConstants, StepCost, TrainingCost, draft_cost, step_cost
from .hardware import Accelerator
from .lengths import LengthModel
from .model_size import ModelShape
from .workload import Workload

MEAN_OF = 512  # groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that does not depend on the system that is simulated."""

    model: ModelShape
    accelerator: Accelerator
    num_servers: int
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.85
    max_num_seqs: int = 256
    train_batch_size: int  # B
    rollout_n: int
    max_response_length: int
    prompt_len_tok: int = 200
    lengths: LengthModel
    valid_share: float  # of the groups
    reward_s: float = 0.0
    training_s: float | None = None  # None: by arithmetic
    log_prob_s: float = 0.0  # of a pass before the update, where `training_s` is given
    training_flop_share: float = 0.35  # of peak, in training and in recomputing log-probs
    updates: int = 16  # of a step
    gpus_per_rank: int = 1  # of training, that work on the same sequences
    update_s: float = 5.0  # engines to sleep and back, and their new weights
    constants: ServerConstants = field(default_factory=ServerConstants)
    measured: MeasuredCosts | None = None  # in place of constants
    engine_factor: float = 1.0  # all seconds of an engine, drafts and copies too, over those of constants or record
    drafts_accepted: float | None = None  # tokens of a request and step; None = nothing is simulated with drafts
    drafts_accepted_ratio: float = 0.4  # of the drafted tokens
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = self.model.tensor_parallel_sizes
        if self.tensor_parallel_size not in sizes:
            raise ConfigError(
                "tensor_parallel_size",
                self.tensor_parallel_size,
                f"must divide the {self.model.attention_heads} attention heads of {self.model.name}, and divide its "
                f"{self.model.kv_heads} KV heads or be divided by them: one of {', '.join(map(str, sizes))}",
            )
        self.step_cost()

    @property
    def num_gpus(self) -> int:
        return self.num_servers * self.tensor_parallel_size

    def step_cost(self, *, drafts: bool = False, host_kv: bool = False) -> StepCost:
        """
        Args:
            drafts: of engines that draft.
            host_kv: of engines with `async_dapo.host_kv_gib`, which schedule synchronously. Those that draft do too:
                their steps hold the price of it.

        Raises:
            ConfigError: when the model, or one whole trajectory, does not fit on a server, and for drafts of which is
                not said how many are accepted.
        """
        cost = step_cost(
            self.model,
            self.accelerator,
            self.constants,
            tensor_parallel_size=self.tensor_parallel_size,
            gpu_memory_utilization=self.gpu_memory_utilization,
            longest_context_tok=self.prompt_len_tok + self.max_response_length,
        )
        cost = cost if self.measured is None else self.measured.apply(cost)
        if drafts:
            cost = cost.with_drafts(self._draft_cost())
        elif host_kv:
            cost = replace(cost, base_s=cost.base_s + self.constants.synchronous_step_ms / 1e3)
        return cost.times(self.engine_factor)

    @property
    def stop_s(self) -> float:
        """From the stop to idle engines."""
        return self.engine_factor * self.constants.stop_s

    @property
    def copy_share(self) -> float:
        """Of the prefill of a token: to copy its KV cache to host memory and back (`async_dapo.host_kv_gib`), as if its
        engine did nothing else meanwhile. Above 1 it would be prefilled. All are taken to have room there.
        """
        bytes_per_s = 1e9 * self.constants.host_gb_s * self.tensor_parallel_size
        copies_s = 2 * self.model.copied(self.tensor_parallel_size).kv_bytes_per_token / bytes_per_s
        return min(1.0, self.engine_factor * copies_s / self.step_cost().prefill_token_s)

    @property
    def host_kv_gib(self) -> int:
        """Of each GPU, for all that its engine's KV cache can hold."""
        kv_bytes = self.step_cost().kv_room_tok * self.model.copied(self.tensor_parallel_size).kv_bytes_per_token
        return ceil(kv_bytes / self.tensor_parallel_size / 2**30)

    def _draft_cost(self) -> DraftCost:
        if self.drafts_accepted is None:
            raise ConfigError("drafts_accepted", None, "say how many tokens of drafts are accepted in a step, e.g. 0.3")
        return draft_cost(
            self.model,
            self.accelerator,
            self.constants,
            tensor_parallel_size=self.tensor_parallel_size,
            accepted_tok=self.drafts_accepted,
            drafted_tok=self.drafts_accepted / self.drafts_accepted_ratio,
        )

    def why_two_passes(self, correction: ImportanceSampling = ImportanceSampling.DECOUPLED) -> str | None:
        """Why this recipe computes log-probs before an update, with its other options' defaults; None: it does not."""
        if "one_pass" not in declared():
            return not_here("one_pass")
        why: str | None = load("one_pass", "conditions.why_two_passes")(correction=correction, updates=self.updates)
        return why

    def training_cost(self) -> TrainingCost:
        return TrainingCost(
            model=self.model,
            flop_per_s=self.training_flop_share * self.accelerator.bf16_tflop_s * 1e12 * self.num_gpus,
            fixed_s=self.training_s,
            fixed_log_prob_s=self.log_prob_s,
        )

    @property
    def mean_len_tok(self) -> float:
        """Of all responses, valid or not; from a sample of its own [tokens]."""
        sample = self.workload().answers(MEAN_OF)
        lens_tok = [length for answers in sample for length in answers.response_lens_tok]
        return sum(lens_tok) / len(lens_tok)

    def workload(self) -> Workload:
        return Workload(
            self.lengths,
            self.valid_share,
            n=self.rollout_n,
            limit_tok=self.max_response_length,
            seed=self.seed,
        )
