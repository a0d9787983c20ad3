"""The facts of a run that rules are judged by: verl's options and this recipe's, and what follows from them."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy

from ..config.derived import engine_gpus, gpus_per_engine, server_calls, training_gpus
from ..config.options import AsyncDAPOConfig
from ..config.values import ImportanceSampling, copied
from ..config.verl_keys import ACTOR, FSDP_NODES, MODEL, MODELS
from .verl_options import MEGATRON_SIZES, TRAINING_ENGINES, VEOMNI_SIZE

_NODES = {
    "actor": "actor_rollout_ref.actor",
    "model": "actor_rollout_ref.model",
    "rollout": "actor_rollout_ref.rollout",
    "validation": "actor_rollout_ref.rollout.val_kwargs",
    "vllm": "actor_rollout_ref.rollout.engine_kwargs.vllm",
    "correction": "algorithm.rollout_correction",
    "overlong": "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model": "reward.reward_model",
}

_GPUS = {"training_gpus": training_gpus, "engine_gpus": engine_gpus, "gpus_per_engine": gpus_per_engine}

MOST_WEIGHT = 2.0  # of a token from an engine of another precision
DECOUPLED, MIXTURE = ImportanceSampling.DECOUPLED, ImportanceSampling.MIXTURE
BYPASS, NONE = ImportanceSampling.BYPASS, ImportanceSampling.NONE


@dataclass(frozen=True, kw_only=True)
class Run:
    """The facts that rows are judged by: verl's nodes by the names in `_NODES`, others by those of the configuration.

    Attributes:
        config: in which the arguments of vLLM have underscores, however they were written.
        options: this recipe's.
    """

    config: DictConfig
    options: AsyncDAPOConfig

    @classmethod
    def of(cls, config: DictConfig, options: AsyncDAPOConfig) -> "Run":
        given = config.actor_rollout_ref.rollout.engine_kwargs.vllm
        if any("-" in str(key) for key in given):
            config = copied(config)
            names = {str(key).replace("-", "_"): value for key, value in given.items()}
            config.actor_rollout_ref.rollout.engine_kwargs.vllm = names
        return cls(config=config, options=options)

    def __getattr__(self, name: str) -> Any:
        """Look a fact up once, and keep it as an attribute."""
        fact = _GPUS[name](self.config) if name in _GPUS else self.get(_NODES.get(name, name))
        self.__dict__[name] = fact
        return fact

    def get(self, key: str) -> Any:
        return OmegaConf.select(self.config, key)

    def corrects(self, mode: ImportanceSampling) -> bool:
        return self.options.importance_sampling is mode

    @cached_property
    def has(self) -> dict[str, bool]:
        """Which models are trained, or score."""
        return {"actor": True, "ref": need_reference_policy(self.config), "critic": need_critic(self.config)}

    @cached_property
    def builds(self) -> dict[str, bool]:
        """Which of these models have workers of their own: the reference policy is the actor without its adapters."""
        has_adapters = any(self.get(MODEL + name) for name in ("lora_rank", "lora.rank", "lora_adapter_path"))
        return self.has | {"ref": self.has["ref"] and not has_adapters}

    @property
    def longest_tok(self) -> int:
        return self.options.max_prompt_length + self.options.max_response_length

    @property
    def split_over(self) -> dict[str, int]:
        """Ranks that share a sequence, by model [count]."""
        keys = {
            model: [*(f"{node}ulysses_sequence_parallel_size" for node in nodes), VEOMNI_SIZE, MEGATRON_SIZES[-1]]
            for model, nodes in FSDP_NODES.items()
        }
        return {model: max(self.get(MODELS[model] + key) or 1 for key in keys[model]) for model in MODELS}

    @property
    def held_by(self) -> dict[str, int]:
        """Ranks that get the same trajectories: they share sequences, or Megatron's model [count], by model."""
        return {
            model: split * math.prod(self.get(MODELS[model] + key) or 1 for key in MEGATRON_SIZES[:-1])
            for model, split in self.split_over.items()
        }

    @property
    def ranks(self) -> dict[str, int]:
        """Data-parallel ranks, by model."""
        return {model: max(1, self.training_gpus // held_by) for model, held_by in self.held_by.items()}

    @property
    def least_tok(self) -> dict[str, int]:
        """Tokens that a rank's share of the longest trajectory has, by model."""
        return {model: -(-self.longest_tok // split) for model, split in self.split_over.items()}

    def strategy_of(self, model: str) -> str:
        return str(self.get(MODELS[model] + "strategy"))

    @property
    def strategies(self) -> tuple[str, ...]:
        """Of verl's training engine; none of one that is not known."""
        return TRAINING_ENGINES.get(self.model_engine, ())

    @property
    def saves(self) -> bool:
        """Whether checkpoints are written."""
        return bool(self.trainer.save_freq > 0)

    @property
    def resumes(self) -> bool:
        """Whether one is read, if there is one."""
        return bool(self.trainer.resume_mode != "disable")

    @property
    def withholds(self) -> bool:
        """Whether tokens may grow too old for the loss in the middle of a trajectory."""
        options = self.options
        spans = options.keeps_tokens and (not options.drains or options.max_tokens_per_round is not None)
        return bool(options.max_staleness) and spans

    @property
    def requests(self) -> int:
        """Requests that workers could wait with at once: a group starts while there is one place for its n [count]."""
        fixed = self.options.fixed_pool_size
        return self.options.slots_hold if fixed is None else fixed + self.options.rollout_n - 1

    @property
    def server_calls(self) -> int:
        """Concurrent calls of a vLLM server actor."""
        return server_calls(self.rollout.max_num_seqs * self.rollout.data_parallel_size)

    @property
    def replays(self) -> str | None:
        """Which experts Megatron or VeOmni takes again, in verl's words; None of FSDP: those that it is told."""
        return None if self.model_engine == "dp" else self.get(f"{ACTOR}{self.model_engine}.router_replay.mode")

    @property
    def truncates_tokens(self) -> bool:
        """Whether each token has a weight that is small enough for engines of another precision."""
        return (
            (self.corrects(DECOUPLED) or self.corrects(MIXTURE))
            and self.correction.rollout_is in (None, "token")
            and self.largest_weight <= MOST_WEIGHT
        )

    @property
    def largest_weight(self) -> float:
        """That the correction leaves; infinite where verl reads none."""
        try:
            return float(str(self.correction.rollout_is_threshold).rpartition("_")[2])
        except ValueError:
            return math.inf
