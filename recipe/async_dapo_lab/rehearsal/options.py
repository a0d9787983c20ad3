"""Options of a rehearsal, `options.yaml`: the node `rehearsal` that it adds to the configuration, and the planner's
scenario that follows.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from ...async_dapo.config.derived import training_gpus, updates_of
from ...async_dapo.config.extensions import chosen, declared, not_in_copy
from ...async_dapo.config.values import (
    ConfigError,
    Count,
    NotNegative,
    Positive,
    parse_options,
)
from ..command_line import path
from ..plan.costs import StepCost
from ..plan.hardware import DEFAULT_ACCELERATOR, find_accelerator
from ..plan.inputs import Inputs
from ..plan.scenario import Scenario
from ..plan.trainer_memory import Gpu

# The node that this override of Hydra's adds to the recipe's configuration; no search path is asked for it, so that a
# run may have one of its own.
WITH_REHEARSAL = ("+rehearsal=options",)
ConfigStore.instance().store(
    group="rehearsal", name="options", node=OmegaConf.load(Path(__file__).with_name("options.yaml"))
)
NODE = "rehearsal."
CONFIG = "config.yaml"  # in the folder of results: the configuration of the run, there when all checks have passed
KV_CACHE_DTYPE = "engine_kwargs.vllm.kv_cache_dtype"
AGENTS_NEED = ("gateway", "http", "agent_programs", "chat_completions")  # the extensions that scripted agents stand on


class CompressedClock:
    """The compressed time of a rehearsal, the same in all of its processes: C virtual seconds pass in a real one.

    Args:
        speedup: virtual seconds in a real one (C) [> 0].
        origin_s: real time at virtual time 0 [s].
        real_s: real time [s].
    """

    def __init__(self, speedup: float, *, origin_s: float, real_s: Callable[[], float] = time.time) -> None:
        self.speedup = speedup
        self._origin_s = origin_s
        self._real_s = real_s

    def now_s(self) -> float:
        """Virtual seconds since the origin."""
        return (self._real_s() - self._origin_s) * self.speedup

    def real_until(self, virtual_s: float) -> float:
        """Real seconds until a virtual time; 0 if it is past."""
        return max(0.0, (virtual_s - self.now_s()) / self.speedup)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """The options of `options.yaml`, which has units and ranges; `inputs` are those that the planner has, too."""

    speedup: Positive
    steps: Count
    warmup: NotNegative
    stand_in: bool
    workers: Count
    agent_turns: Count | None
    agent_own_s: Positive
    output: str
    inputs: Mapping[str, Any]

    @classmethod
    def from_hydra(cls, config: DictConfig) -> "RehearsalOptions":
        """
        Raises:
            ConfigError: for an option that is unknown or out of range.
        """
        node = cast(dict[str, Any], OmegaConf.to_container(config.rehearsal, resolve=True))
        own = {field.name for field in fields(cls)}
        inputs = {key: node.pop(key) for key in list(node) if key in Inputs.described() and key not in own}
        node["inputs"] = {key: value for key, value in inputs.items() if value is not None}
        node.pop("origin_s", None)
        options = parse_options(cls, node, NODE)
        if options.warmup >= options.steps:
            raise ConfigError(NODE + "warmup", options.warmup, f"must be below {NODE}steps={options.steps}")
        missing = [name for name in AGENTS_NEED if name not in declared()]
        if options.agent_turns is not None and missing:
            raise ConfigError(NODE + "agent_turns", options.agent_turns, not_in_copy(missing[0], "leave it null"))
        return options

    @property
    def folder(self) -> Path:
        return path(self.output).absolute()

    @property
    def spans_file(self) -> Path:
        return self.folder / "spans.jsonl"

    def planner_inputs(self, config: DictConfig) -> Inputs:
        """What the planner is to be asked for the same run.

        Raises:
            ConfigError: for a value that the planner refuses.
        """
        rollout = config.actor_rollout_ref.rollout
        per_server = (
            rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
        )
        gpus = training_gpus(config)
        if gpus % per_server:
            raise ConfigError(
                "trainer.n_gpus_per_node", config.trainer.n_gpus_per_node, f"{gpus} GPUs are no whole number of "
                f"servers of {per_server} (tensor x data x pipeline parallel size)"
            )  # fmt: skip
        kv_cache_dtype = str(OmegaConf.select(rollout, KV_CACHE_DTYPE, default=None))
        given = {
            "kv_cache_dtype": "fp8" if kv_cache_dtype.startswith("fp8") else "auto",
            "model": config.actor_rollout_ref.model.path,
            "servers": gpus // per_server,
            "tensor_parallel_size": per_server,
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "max_num_seqs": rollout.max_num_seqs * rollout.data_parallel_size,
            "train_batch_size": config.data.train_batch_size,
            "rollout_n": rollout.n,
            "max_response_length": config.data.max_response_length,
            "updates": updates_of(config),
        }
        return Inputs.load(given | dict(self.inputs))

    def scenario(self, config: DictConfig) -> Scenario:
        return self.planner_inputs(config).scenario()

    def step_cost(self, config: DictConfig) -> StepCost:
        """Of the engines.

        Raises:
            ConfigError: if they draft, and `drafts_accepted` is not given.
        """
        host_kv = config.async_dapo.host_kv_gib is not None
        return self.scenario(config).step_cost(drafts=has_drafts(config), host_kv=host_kv)


def has_drafts(config: DictConfig) -> bool:
    """Whether engines draft, by the recipe's option or vLLM's own."""
    return "drafts" in chosen(config)


def assumed_gpu(config: DictConfig) -> Gpu:
    """The GPU that checks count with where this machine has none.

    Raises:
        ConfigError: for one that the planner does not know.
    """
    named = config.rehearsal.accelerator
    gpu = find_accelerator(named or DEFAULT_ACCELERATOR)
    return replace(gpu, name=f"{gpu.name} (assumed: no GPU here, rehearsal.accelerator={named})")


def make_clock(config: DictConfig) -> CompressedClock:
    """The virtual clock of a run that has begun."""
    return CompressedClock(config.rehearsal.speedup, origin_s=config.rehearsal.origin_s)
