"""What verl's options come to: GPUs, engines, updates of a step. And verl's options that the recipe's one of importance
sampling sets.
"""

from omegaconf import DictConfig, OmegaConf, open_dict

from .values import ImportanceSampling, Placement

# verl gives a vLLM server actor its engine's sequences and some calls more, but at least so many.
_CONTROL_CALLS, _LEAST_SERVER_CALLS = 16, 1000


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


def server_calls(max_num_seqs: int) -> int:
    """Concurrent calls of a vLLM server actor [calls]; weight updates and the stop wait behind what is beyond."""
    return max(_LEAST_SERVER_CALLS, max_num_seqs + _CONTROL_CALLS)


def needs_bypass_loss(correction: DictConfig) -> bool:
    """Whether `algorithm.rollout_correction` asks, in bypass mode, for what only verl's own loss of that mode does."""
    return correction.rollout_rs is not None or correction.loss_type != "ppo_clip"


def wire_importance_sampling(config: DictConfig, mode: ImportanceSampling) -> None:
    """Set the several options of verl's that make `async_dapo.importance_sampling` act in its V1 trainer, in place.

    bypass     old_log_probs = rollout_log_probs: PPO's ratio is pi_theta / mu (CoPRIS, arXiv:2511.05589, eq. 8).
    decoupled  old_log_probs are those of the newest weights; the loss is weighted by the truncated pi_prox / mu.
    mixture    the same; then the trainer puts weights with the mixture of a group's versions in their place.
    none       old_log_probs are those of the newest weights, uncorrected.

    In bypass mode verl reads rejection masks from the loss's own options, and only with its own loss: they are copied
    there.
    """
    correction = config.algorithm.rollout_correction
    correction.bypass_mode = mode is ImportanceSampling.BYPASS
    if mode in (ImportanceSampling.DECOUPLED, ImportanceSampling.MIXTURE):
        correction.rollout_is = correction.rollout_is or "token"
    if correction.bypass_mode and needs_bypass_loss(correction):
        policy_loss = config.actor_rollout_ref.actor.policy_loss
        with open_dict(policy_loss):
            policy_loss.loss_mode = "bypass_mode"
            policy_loss.rollout_correction = OmegaConf.create(OmegaConf.to_container(correction))


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
