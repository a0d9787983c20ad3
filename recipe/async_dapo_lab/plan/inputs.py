"""What the user says: one flat list of inputs, options of the command line, and of a rehearsal."""

import os
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import Meta

from ...async_dapo.config.extensions import declared
from ...async_dapo.config.values import (
    MOST_DRAFT_TOK,
    ConfigError,
    NotNegative,
    RolloutStrategy,
    Share,
    SomeShare,
    check_choice,
    typed,
)
from .calibration import calibrate
from .costs import DEFAULT_ENGINE, ENGINES, ServerConstants
from .hardware import ACCELERATORS, DEFAULT_ACCELERATOR, MODEL_PRESETS, Accelerator, find_accelerator, load_model
from .lengths import LengthModel, LogNormalLengths, load_lengths
from .model_size import ModelShape
from .scenario import Scenario
from .workload import BLOCK

MOST_CUT = 0.9  # of responses, that may be as long as the limit [0-1]
LEAST_VALID_SHARE = 0.005  # of groups, that is worth simulating [0-1]
KV_BYTES = {"auto": 1.0, "fp8": 0.5}  # of a value, compared with bf16
# Ranges that no machine and no job leaves: a number outside of them is a slip.
FromZero = Annotated[float, Meta(ge=0, le=1e6, description="a number in 0..1e6")]
Amount = Annotated[float, Meta(ge=1e-6, le=1e6, description="a number in 1e-6..1e6")]
Reached = Annotated[float, Meta(ge=1e-3, le=1, description="a number in 0.001..1")]
Factor = Annotated[float, Meta(ge=0.01, le=100, description="a number in 0.01..100")]
Many = Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number in 1..1000000")]
KvBytes = Annotated[float, Meta(ge=1, le=1e9, description="a number in 1..1e9")]
Sigma = Annotated[float, Meta(ge=0, le=4, description="a number in 0..4")]
ResponseTok = Annotated[int, Meta(ge=1, le=10_000_000, description="a whole number in 1..10000000")]
Warmup = Annotated[int, Meta(ge=0, le=1_000_000, description="a whole number in 0..1000000")]
LengthTok = Annotated[float, Meta(gt=0, le=1e9, description="a number > 0 and <= 1e9")]
DraftTok = Annotated[float, Meta(ge=0, le=MOST_DRAFT_TOK, description=f"a number in 0..{MOST_DRAFT_TOK}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The planner's inputs; defaults are the reference setting: Qwen3-8B, 8 x H200, up to 16K tokens, DAPO's batch."""

    model: Annotated[
        str, f"Hugging Face config.json, the folder that holds it, or a preset: {', '.join(MODEL_PRESETS)}"
    ] = "qwen3-8b"
    weight_gb: Annotated[Amount | None, "weights [1e9 bytes]; null = from the model's config.json, bf16"] = None
    kv_bytes_per_token: Annotated[KvBytes | None, "KV cache of a token [bytes]; null = from config.json, bf16"] = None
    kv_cache_dtype: Annotated[
        str, "engine_kwargs.vllm.kv_cache_dtype: auto = the model's, fp8 = half the bytes of kv_bytes_per_token"
    ] = "auto"
    accelerator: Annotated[str, f"preset: {', '.join(ACCELERATORS)}"] = DEFAULT_ACCELERATOR
    memory_gb: Annotated[Amount | None, "of one accelerator [1e9 bytes]; null = the preset's"] = None
    bandwidth_tb_s: Annotated[Amount | None, "of its memory, peak [TB/s]; null = the preset's"] = None
    bf16_tflop_s: Annotated[Amount | None, "dense peak [TFLOP/s]; null = the preset's"] = None
    servers: Annotated[Many, "vLLM servers [count]"] = 8
    tensor_parallel_size: Annotated[Many, "accelerators per server [count]"] = 1
    gpu_memory_utilization: Annotated[SomeShare, "actor_rollout_ref.rollout.gpu_memory_utilization [0-1]"] = 0.85
    max_num_seqs: Annotated[Many, "actor_rollout_ref.rollout.max_num_seqs [requests]"] = 256
    train_batch_size: Annotated[Many, "B, data.train_batch_size [prompt groups]"] = 512
    rollout_n: Annotated[Many, "n, actor_rollout_ref.rollout.n [trajectories per group]"] = 16
    max_response_length: Annotated[ResponseTok, "data.max_response_length [tokens]"] = 16384
    prompt_len_tok: Annotated[Many, "of a prompt, on average [tokens]"] = 200
    lengths: Annotated[str | None, "JSONL file of response lengths, or a run's metrics.jsonl; null = log-normal"] = None
    length_median_tok: Annotated[LengthTok, "of the log-normal [tokens]"] = 4000.0
    length_sigma: Annotated[Sigma, "of the logarithm"] = 0.9
    length_correlation: Annotated[Share, "of lengths within a group [0-1]; measured if a file names groups"] = 0.5
    valid_share: Annotated[SomeShare, "share of groups that pass DAPO's filter [0-1]"] = 0.6
    reward_s: Annotated[FromZero, "from the end of a trajectory to its reward [s]"] = 0.0
    training_s: Annotated[FromZero | None, "training of a step [s]; null = from arithmetic, log-probs too"] = None
    log_prob_s: Annotated[
        FromZero, "with training_s: the pass of log-probs before an update, in steps that have one [s]"
    ] = 0.0
    training_flop_share: Annotated[Reached, "of peak that training reaches [0-1]"] = 0.35
    updates: Annotated[
        Many, "of a step: mini-batches times epochs; before a single one no log-probs are computed [count]"
    ] = 16
    gpus_per_rank: Annotated[
        Many, "that train on the same sequences: Ulysses, or Megatron's tensor x pipeline x context parallel [count]"
    ] = 1
    update_s: Annotated[FromZero, "engines to sleep and back, with new weights [s]"] = 5.0
    engine: Annotated[str, f"whose constants: {', '.join(ENGINES)}"] = DEFAULT_ENGINE
    bandwidth_share: Annotated[Reached | None, "of peak that decoding reaches [0-1]; null = the engine's"] = None
    step_overhead_ms: Annotated[
        FromZero | None, "of one decode step, on top of memory traffic [ms]; null = the engine's"
    ] = None
    request_overhead_ms: Annotated[
        FromZero | None, "of one decode step, per running request [ms]; null = the engine's"
    ] = None
    prefill_flop_share: Annotated[Reached | None, "of peak that prefill reaches [0-1]; null = the engine's"] = None
    all_reduce_us: Annotated[
        FromZero | None, "of a sum over the GPUs of a server, two a layer in each decode step [us]; null = the engine's"
    ] = None
    engine_factor: Annotated[Factor, "seconds of the engines over those of the constants; --record fits it"] = 1.0
    calibrate: Annotated[str | None, "JSONL record of a real engine, whose decode step replaces the constants"] = None
    drafts_accepted: Annotated[
        DraftTok | None, "drafted tokens that a request has accepted in a step, on average [tokens]; null = no drafts"
    ] = None
    drafts_accepted_ratio: Annotated[Reached, "share of the drafted tokens that are accepted [0-1]"] = 0.4
    strategies: Annotated[list[RolloutStrategy] | None, f"to try, of {', '.join(RolloutStrategy)}; null = all"] = None
    steps: Annotated[Many | None, "steps to average over [count]; null = as many as the batch size needs"] = None
    warmup: Annotated[Warmup | None, "steps before, until the buffer is full [count]; null = as needed"] = None
    seed: Annotated[NotNegative, "decides every random number"] = 0

    @classmethod
    def described(cls) -> dict[str, tuple[Any, str]]:
        """Every input's default, and what it is."""
        about = {name: kind.__metadata__[-1] for name, kind in get_type_hints(cls, include_extras=True).items()}
        return {field.name: (field.default, about[field.name]) for field in fields(cls)}

    @classmethod
    def load(cls, given: dict[str, Any]) -> "Inputs":
        """From values of any type that says the same, such as texts of a command line.

        Raises:
            ConfigError: for a value of the wrong type, or out of its range.
        """
        kinds = get_type_hints(cls, include_extras=True)
        values = dict(given)
        if isinstance(strategies := values.get("strategies"), str):
            values["strategies"] = strategies.split(",")
        for name in ("model", "lengths", "calibrate"):
            if isinstance(place := values.get(name), str):
                values[name] = os.path.expanduser(place)  # shells leave it as it is behind `--model=`
        return cls(**{key: _converted(key, value, kinds[key]) for key, value in values.items()})

    @property
    def why_no_old_kv(self) -> str | None:
        """Why a training could not keep KV over a weight update; None: it can."""
        if self.kv_cache_dtype != "auto":
            return "an FP8 cache cannot be kept over a weight update"
        model = self._model()
        if model.has_state:
            return f"{model.name} has layers with a state, which host memory does not keep"
        return None if "host_kv" in declared() else "extensions/host_kv is not in this copy"

    def scenario(self) -> Scenario:
        """
        Raises:
            ConfigError: for a model or a trajectory that does not fit, and where hardly any group would be valid.
        """
        check_choice("engine", self.engine, ENGINES)
        own = {f.name: getattr(self, f.name) for f in fields(ServerConstants) if f.name in _NAMES}
        given = {name: value for name, value in own.items() if value is not None}
        scenario = Scenario(
            model=self._model(),
            accelerator=self._accelerator(),
            num_servers=self.servers,
            lengths=self._lengths(),
            constants=replace(ENGINES[self.engine], **given),
            measured=None if self.calibrate is None else calibrate(self.calibrate),
            **{key: getattr(self, key) for key in _SAME_IN_SCENARIO},
        )
        self._check_valid_groups(scenario)
        self._check_lengths(scenario)
        return scenario

    def _check_lengths(self, scenario: Scenario) -> None:
        """Lengths that are nearly all cut, or of no tokens, are a slip of a unit."""
        key, value = ("lengths", self.lengths) if self.lengths else ("length_median_tok", self.length_median_tok)
        sample = scenario.workload().answers(BLOCK)
        lens_tok = [length for answers in sample for length in answers.response_lens_tok]
        cut = sum(length >= self.max_response_length for length in lens_tok) / len(lens_tok)
        if cut > MOST_CUT:
            raise ConfigError(
                key,
                value,
                f"{cut:.0%} of the responses would reach max_response_length={self.max_response_length}: lower it, or "
                "raise the limit",
            )
        if sum(length <= 1 for length in lens_tok) > MOST_CUT * len(lens_tok):
            raise ConfigError(key, value, "nearly all responses would have one token; give tokens, not thousands")

    def _check_valid_groups(self, scenario: Scenario) -> None:
        """Systems that draw until they have a batch would draw for ever. A single answer is never filtered."""
        workload = scenario.workload()
        workload.answers(BLOCK)
        if self.rollout_n > 1 and workload.num_valid < LEAST_VALID_SHARE * BLOCK:
            raise ConfigError(
                "valid_share",
                self.valid_share,
                f"{workload.num_valid} of {BLOCK} sampled groups of n={self.rollout_n} are valid; below "
                f"{LEAST_VALID_SHARE:.1%} a step of B={self.train_batch_size} would hardly end",
            )

    def _model(self) -> ModelShape:
        model = load_model(self.model)
        check_choice("kv_cache_dtype", self.kv_cache_dtype, KV_BYTES)
        kv_bytes = KV_BYTES[self.kv_cache_dtype]
        return replace(
            model,
            weight_bytes=model.weight_bytes if self.weight_gb is None else self.weight_gb * 1e9,
            kv_bytes_per_token=kv_bytes * (self.kv_bytes_per_token or model.kv_bytes_per_token),
            window_bytes_per_token=kv_bytes * model.window_bytes_per_token,
        )

    def _accelerator(self) -> Accelerator:
        given = {key: getattr(self, key) for key in ("memory_gb", "bandwidth_tb_s", "bf16_tflop_s")}
        if None not in given.values():
            return Accelerator(name=self.accelerator, **given)
        return replace(find_accelerator(self.accelerator), **{k: v for k, v in given.items() if v is not None})

    def _lengths(self) -> LengthModel:
        if self.lengths is not None:
            return load_lengths(self.lengths, default_correlation=self.length_correlation)
        return LogNormalLengths(
            median_tok=self.length_median_tok, sigma=self.length_sigma, correlation=self.length_correlation
        )


_NAMES = {field.name for field in fields(Inputs)}
_SAME_IN_SCENARIO = sorted(
    _NAMES & {f.name for f in fields(Scenario)} - {"model", "accelerator", "lengths", "constants"}
)


def _converted(key: str, value: Any, kind: Any) -> Any:
    """As the input's type, without what `described` says of it."""
    if key == "strategies" and value is not None:
        return [typed(RolloutStrategy, one, key) for one in value]
    plain, about, *_ = get_args(kind)
    return typed(kind if isinstance(about, Meta) else plain, value, key, strict=False)
