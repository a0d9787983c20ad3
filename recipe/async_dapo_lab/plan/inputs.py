"""What the user says: one flat list of inputs, the same in a YAML file and on the command line."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ...async_dapo.config.values import ConfigError, RolloutStrategy, check_choice
from ...async_dapo.core.stop_rules import StopRuleName
from .calibration import calibrate
from .candidates import VLLM_CALL_LIMIT
from .costs import ServerConstants
from .hardware import ACCELERATORS, DEFAULT_ACCELERATOR, Accelerator, ModelShape, find_accelerator, load_model
from .lengths import LengthModel, LogNormalLengths, load_lengths
from .scenario import Scenario
from .workload import BLOCK

MOST_CUT = 0.9  # of responses, that may be as long as the limit [0-1]
LEAST_VALID_SHARE = 0.005  # of groups, that is worth simulating [0-1]
KV_BYTES = {"auto": 1.0, "fp8": 0.5}  # of a value, compared with bf16
SMALLEST = {"steps": 1, "servers": 1, "updates": 1} | dict.fromkeys(
    ("warmup", "seed", "step_overhead_ms", "request_overhead_ms", "max_length_bias", "max_off_policy"), 0
)
ABOVE_ZERO = ("weight_gb", "kv_bytes_per_token", "memory_gb", "bandwidth_tb_s", "bf16_tflop_s")
LARGEST = {"length_sigma": 4.0, "prompt_len_tok": 1_000_000, "max_response_length": 10_000_000}


def _converted(key: str, value: Any, kind: Any) -> Any:
    """A YAML value or a command-line word as the input's type."""
    if isinstance(kind, UnionType):
        if value is None or value in ("null", "none"):
            return None
        kind = next(option for option in kind.__args__ if option is not NoneType)
    try:
        if get_origin(kind) is list:
            items = value.split(",") if isinstance(value, str) else list(value)
            return [get_args(kind)[0](item) for item in items]
        if kind in (int, float) and not math.isfinite(float(value)):
            raise ValueError
        if kind is int and float(value) != int(float(value)):
            raise ValueError
        return int(float(value)) if kind is int else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(key, value, f"must be {_INPUT_KINDS.get(kind) or _list_of(get_args(kind)[0])}") from None


def _list_of(item: type) -> str:
    if issubclass(item, StrEnum):
        return f"a comma-separated list of {', '.join(item)}"
    return f"a comma-separated list, each {_INPUT_KINDS[item]}"


_INPUT_KINDS = {int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The planner's inputs; defaults are the reference setting: Qwen3-8B, 8 x H200, up to 16K tokens, DAPO's batch."""

    model: Annotated[str, "preset, Hugging Face config.json, or the folder that holds it"] = "qwen3-8b"
    weight_gb: Annotated[float | None, "weights [1e9 bytes]; null = from the model's config.json, bf16"] = None
    kv_bytes_per_token: Annotated[float | None, "KV cache of one token [bytes]; null = from config.json, bf16"] = None
    kv_cache_dtype: Annotated[
        str, "engine_kwargs.vllm.kv_cache_dtype: auto = the model's, fp8 = half the bytes of kv_bytes_per_token"
    ] = "auto"
    accelerator: Annotated[str, f"preset: {', '.join(ACCELERATORS)}"] = DEFAULT_ACCELERATOR
    memory_gb: Annotated[float | None, "of one accelerator [1e9 bytes]; null = the preset's"] = None
    bandwidth_tb_s: Annotated[float | None, "of its memory, peak [TB/s]; null = the preset's"] = None
    bf16_tflop_s: Annotated[float | None, "dense peak [TFLOP/s]; null = the preset's"] = None
    servers: Annotated[int, "vLLM servers [count]"] = 8
    tensor_parallel_size: Annotated[int, "accelerators per server [count]"] = 1
    gpu_memory_utilization: Annotated[float, "actor_rollout_ref.rollout.gpu_memory_utilization [0-1]"] = 0.85
    max_num_seqs: Annotated[int, "actor_rollout_ref.rollout.max_num_seqs [requests]"] = 256
    train_batch_size: Annotated[int, "B, data.train_batch_size [prompt groups]"] = 512
    rollout_n: Annotated[int, "n, actor_rollout_ref.rollout.n [trajectories per group]"] = 16
    max_response_length: Annotated[int, "data.max_response_length [tokens]"] = 16384
    prompt_len_tok: Annotated[int, "of a prompt, on average [tokens]"] = 200
    lengths: Annotated[
        str | None, "JSONL or parquet file of response lengths, or a run's metrics.jsonl; null = log-normal"
    ] = None
    length_median_tok: Annotated[float, "of the log-normal [tokens]"] = 4000.0
    length_sigma: Annotated[float, "of the logarithm"] = 0.9
    length_correlation: Annotated[float, "of lengths within a group [0-1]; measured if a file names groups"] = 0.5
    valid_share: Annotated[float, "share of groups that pass DAPO's filter [0-1]"] = 0.6
    reward_s: Annotated[float, "from the end of a trajectory to its reward [s]"] = 0.0
    tool_calls: Annotated[int, "calls of tools in a trajectory, evenly over its response [count]"] = 0
    tool_median_s: Annotated[float, "of a call, log-normal [s]"] = 0.0
    tool_sigma: Annotated[float, "of the logarithm"] = 1.0
    training_s: Annotated[float | None, "training and log-probs of a step [s]; null = from arithmetic"] = None
    training_flop_share: Annotated[float, "of peak that training reaches [0-1]"] = 0.35
    updates: Annotated[
        int, "of a step: mini-batches times epochs; before a single one no log-probs are computed [count]"
    ] = 16
    gpus_per_rank: Annotated[
        int, "that train on the same sequences: Ulysses, or Megatron's tensor x pipeline x context parallel [count]"
    ] = 1
    update_s: Annotated[float, "engines to sleep and back, with new weights [s]"] = 5.0
    bandwidth_share: Annotated[float, "of peak that decoding reaches [0-1]"] = 0.77
    step_overhead_ms: Annotated[float, "of one decode step, on top of memory traffic [ms]"] = 5.0
    request_overhead_ms: Annotated[float, "of one decode step, per running request [ms]"] = 0.12
    prefill_flop_share: Annotated[float, "of peak that prefill reaches [0-1]"] = 0.15
    calibrate: Annotated[str | None, "JSONL record of a real run, whose costs replace the constants"] = None
    drafts_accepted: Annotated[
        float | None, "drafted tokens that a request has accepted in a step, on average [tokens]; null = no drafts"
    ] = None
    drafts_accepted_ratio: Annotated[float, "share of the drafted tokens that are accepted [0-1]"] = 0.4
    host_kv_gib: Annotated[
        float | None, "async_dapo.host_kv_gib of partial_stale_kv [GiB a GPU]; null = its engines do not sleep"
    ] = None
    strategies: Annotated[list[RolloutStrategy] | None, f"to try, of {', '.join(RolloutStrategy)}; null = all"] = None
    stop_rules: Annotated[list[StopRuleName] | None, f"to try, of {', '.join(StopRuleName)}; null = all"] = None
    concurrency: Annotated[list[int] | None, "fixed pool sizes to try, too [trajectories]"] = None
    max_length_bias: Annotated[float, "largest |trained / natural mean length - 1| to recommend"] = 0.03
    max_off_policy: Annotated[float, "largest share of off-policy tokens to recommend [0-1]"] = 1.0
    steps: Annotated[int | None, "steps to average over [count]; null = as many as the batch size needs"] = None
    warmup: Annotated[int | None, "steps before, until the buffer is as full as it gets [count]; null = as needed"] = (
        None
    )
    seed: Annotated[int, "decides every random number"] = 0

    @classmethod
    def described(cls) -> dict[str, tuple[Any, str]]:
        """Every input's default, and what it is."""
        about = {name: kind.__metadata__[0] for name, kind in get_type_hints(cls, include_extras=True).items()}
        return {field.name: (field.default, about[field.name]) for field in fields(cls)}

    @classmethod
    def load(
        cls, path: str | None, overrides: dict[str, Any], *, recorded: Mapping[str, Any] = MappingProxyType({})
    ) -> "Inputs":
        """From what a run has recorded (or the defaults), a YAML file, and command-line values on top of each other.

        Raises:
            ConfigError: for a file that cannot be read, an unknown input or a value of the wrong type.
        """
        values: dict[str, Any] = {}
        if path is not None:
            if not Path(path).is_file():
                raise ConfigError("scenario", path, "no such file; give a YAML file with the inputs that --help lists")
            try:
                loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
            except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
                raise ConfigError("scenario", path, f"is not YAML ({str(error).splitlines()[0]})") from error
            if not isinstance(loaded, dict):
                raise ConfigError("scenario", path, "must hold `name: value` lines")
            values = {str(key): value for key, value in loaded.items()}
        types = get_type_hints(cls)
        for key in values.keys() - types.keys():
            raise ConfigError(key, values[key], f"unknown input of {path}; known: {', '.join(sorted(types))}")
        inputs = cls(
            **{key: _converted(key, value, types[key]) for key, value in ({**recorded} | values | overrides).items()}
        )
        for key, smallest in SMALLEST.items():
            value = getattr(inputs, key)
            if value is not None and value < smallest:
                raise ConfigError(key, value, f"must be >= {smallest}")
        for key, largest in LARGEST.items():
            if getattr(inputs, key) > largest:
                raise ConfigError(key, getattr(inputs, key), f"must be <= {largest:g}")
        inputs._check_concurrency()
        if RolloutStrategy.PARTIAL_STALE_KV in (inputs.strategies or []) and not inputs.can_keep_kv:
            raise ConfigError(
                "kv_cache_dtype",
                inputs.kv_cache_dtype,
                f"strategies={RolloutStrategy.PARTIAL_STALE_KV} keeps the cache over weight updates, and with it keys "
                "and values of other scales: training refuses both; leave one of them out",
            )
        return inputs

    @property
    def can_keep_kv(self) -> bool:
        """Over a weight update."""
        return self.kv_cache_dtype == "auto"

    def _check_concurrency(self) -> None:
        most = self.servers * (VLLM_CALL_LIMIT - 1)
        for value in self.concurrency or []:
            if not 1 <= value <= most:
                raise ConfigError(
                    "concurrency",
                    value,
                    f"must be in 1..{most}: {self.servers} servers take fewer than {VLLM_CALL_LIMIT} calls each",
                )

    def scenario(self) -> Scenario:
        """
        Raises:
            ConfigError: for values out of range, for a model or a trajectory that does not fit, and where hardly any
                group would be valid.
        """
        constants = {f.name: getattr(self, f.name) for f in fields(ServerConstants) if f.name in _NAMES}
        for key in ABOVE_ZERO:
            if (value := getattr(self, key)) is not None and value <= 0:
                raise ConfigError(key, value, "must be > 0")
        for key in ("bandwidth_share", "prefill_flop_share", "training_flop_share"):
            if not 0 < getattr(self, key) <= 1:
                raise ConfigError(key, getattr(self, key), "must be in 0..1, above 0")
        scenario = Scenario(
            model=self._model(),
            accelerator=self._accelerator(),
            num_servers=self.servers,
            lengths=self._lengths(),
            constants=replace(ServerConstants(), **constants),
            measured=None if self.calibrate is None else calibrate(self.calibrate, num_servers=self.servers),
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
