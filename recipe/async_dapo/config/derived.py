"""What follows from verl's options: GPUs and engines, updates of a step."""

from omegaconf import DictConfig

from .values import Placement


def training_gpus(config: DictConfig) -> int:
    gpus: int = config.trainer.nnodes * config.trainer.n_gpus_per_node
    return gpus


def engine_gpus(config: DictConfig) -> int:
    """GPUs that engines run on, all together."""
    if config.async_dapo.placement != Placement.SEPARATE:
        return training_gpus(config)
    rollout = config.actor_rollout_ref.rollout
    gpus: int = rollout.nnodes * rollout.n_gpus_per_node
    return gpus


def all_gpus(config: DictConfig) -> int:
    is_separate = config.async_dapo.placement == Placement.SEPARATE
    return training_gpus(config) + (engine_gpus(config) if is_separate else 0)


def gpus_per_engine(config: DictConfig) -> int:
    rollout = config.actor_rollout_ref.rollout
    gpus: int = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    return gpus


def num_engines(config: DictConfig) -> int:
    return engine_gpus(config) // gpus_per_engine(config)


def needs_bypass_loss(correction: DictConfig) -> bool:
    """Whether `algorithm.rollout_correction` asks, in bypass mode, for what only verl's own loss of that mode does."""
    return correction.rollout_rs is not None or correction.loss_type != "ppo_clip"


def updates_of(config: DictConfig) -> int:
    """Of a step: mini-batches times epochs [count]."""
    actor = config.actor_rollout_ref.actor
    updates: int = config.data.train_batch_size // actor.ppo_mini_batch_size * actor.ppo_epochs
    return updates


def longest_trained_tok(config: DictConfig) -> int:
    """The longest trajectory, prompt and response, that micro batches are sure to have room for [tokens]."""
    data, actor = config.data, config.actor_rollout_ref.actor
    longest: int = data.max_prompt_length + data.max_response_length
    return max(longest, actor.ppo_max_token_len_per_gpu) if actor.use_dynamic_bsz else longest
