"""The trainer: loggers, validation, checkpoints, storage of a step's trajectories, and mini and micro batches, which
verl would pad without a word, or which fail at the first long trajectory.
"""

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from ..config import AsyncDAPOConfig, checkpoints_to_keep, training_gpus
from ..option_values import ConfigError, check_choice, check_each, refused
from .verl_options import CRITIC_NUMBERS, check_numbers, listed

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."
_CRITIC = "critic."

# Logger -> the package that it imports where training runs.
LOGGER_PACKAGES = {"vemlp_wandb": "volcengine_ml_platform"} | {
    name: name for name in ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio", "rl_insight")
}
# What a resumed run goes on from, in verl's words: weights, optimizer, and learning rate with random numbers.
_CHECKPOINT_PARTS = ("model", "optimizer", "extra")


def check_trainer(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check loggers, batches, validation, the critic and checkpoints.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    others = (_check_loggers, _check_validation, _check_checkpoints, _check_checkpoint_parts)
    checks = [partial(_check_critic, config), partial(_check_batch_sizes, config, options)]
    check_each([*checks, *(partial(check, config) for check in others)])


def _check_loggers(config: DictConfig) -> None:
    check_each([partial(_check_logger, name) for name in listed(config.trainer.logger)])


def _check_logger(name: str) -> None:
    from verl.utils.tracking import Tracking

    check_choice("trainer.logger", name, Tracking.supported_backend)
    package = LOGGER_PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            "trainer.logger", name, f"needs the package {package}, which is not installed; install or drop it"
        )


def _check_validation(config: DictConfig) -> None:
    trainer = config.trainer
    if trainer.val_only and not trainer.val_before_train:
        raise refused(config, "trainer.val_only", "is ignored without trainer.val_before_train=True")
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    if sampling.temperature == 0 and (sampling.n > 1 or sampling.do_sample):
        raise refused(
            config,
            _ROLLOUT + "val_kwargs.temperature",
            f"gives the same answer {sampling.n} times, do_sample={sampling.do_sample} is ignored; set a temperature "
            "> 0, or n=1 and do_sample=False",
        )
    if sampling.temperature > 0 and not sampling.do_sample:
        raise refused(
            config,
            _ROLLOUT + "val_kwargs.do_sample",
            f"verl ignores it, and val_kwargs.temperature={sampling.temperature} samples; set temperature=0 for greedy "
            "answers, or do_sample=True",
        )


def _check_critic(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic

    trainer = config.trainer
    if not need_critic(config):
        if trainer.critic_warmup > 0:
            raise refused(config, "trainer.critic_warmup", "there is no critic, and the actor would not train; set 0")
        return
    check_numbers(config, CRITIC_NUMBERS)
    keep = checkpoints_to_keep(config)
    if trainer.max_critic_ckpt_to_keep is not None and checkpoints_to_keep(config, "critic") != keep:
        remedy = "is ignored: a checkpoint stays or goes as a whole, by trainer.max_actor_ckpt_to_keep; leave it out"
        raise refused(config, "trainer.max_critic_ckpt_to_keep", remedy)


def _check_checkpoints(config: DictConfig) -> None:
    trainer = config.trainer
    is_named = trainer.resume_mode == "resume_path"
    if trainer.resume_from_path and not is_named:
        remedy = f"is ignored with trainer.resume_mode={trainer.resume_mode}; set trainer.resume_mode=resume_path"
        raise refused(config, "trainer.resume_from_path", remedy)
    if is_named and not trainer.resume_from_path:
        raise refused(config, "trainer.resume_from_path", "set it to a checkpoint folder, or resume_mode=auto")


def _check_checkpoint_parts(config: DictConfig) -> None:
    """verl loads what is named and goes on with new weights or a new optimizer otherwise, without a word."""
    from verl.trainer.ppo.utils import need_critic

    trainer = config.trainer
    acts = {"save_contents": trainer.save_freq > 0, "load_contents": trainer.resume_mode != "disable"}
    for node in (_ACTOR, _CRITIC) if need_critic(config) else (_ACTOR,):
        for name in (name for name, is_read in acts.items() if is_read):
            parts = OmegaConf.select(config, key := f"{node}checkpoint.{name}")
            if parts is not None and not set(_CHECKPOINT_PARTS) <= set(parts):
                raise refused(
                    config,
                    key,
                    f"must hold {', '.join(_CHECKPOINT_PARTS)}: a run could not go on from a checkpoint without them; "
                    "add what is missing, or set trainer.save_freq=-1 and trainer.resume_mode=disable",
                )


def check_storage(config: DictConfig, options: AsyncDAPOConfig, *, validated: int) -> None:
    """Carried trajectories are stored beside those that are trained, and both beside those that are validated between
    two steps: verl forgets a step's batch after that. TransferQueue ends the run where they have no room.

    Args:
        validated: trajectories of one validation that are stored at once [count].

    Raises:
        ConfigError: naming key, value and remedy.
    """
    backend, trainer = config.transfer_queue.backend, config.trainer
    limit = backend.SimpleStorage.total_storage_size
    held, trained = options.over_sampling().batch_unit, options.target_valid_groups * options.rollout_n
    stored = [trained]
    if trainer.val_before_train:
        stored.append(validated)
    if trainer.test_freq > 0:
        stored.append(trained + validated)
    needed = held * options.rollout_n + max(stored)
    if backend.storage_backend == "SimpleStorage" and limit is not None and limit < needed:
        raise refused(
            config,
            "transfer_queue.backend.SimpleStorage.total_storage_size",
            f"must be >= {needed} trajectories: of {held} groups that may be carried over, of data.train_batch_size, "
            f"and of a validation ({validated}; data.val_batch_size divides it)",
        )


def _check_batch_sizes(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check mini and micro batches of every model against B, n and the GPUs."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.workers.config import CriticConfig

    batch, dynamic = options.target_valid_groups * options.rollout_n, _ACTOR + "use_dynamic_bsz"
    micro, of_actor = partial(_check_micro_batches, config), {"model": _ACTOR, "dynamic": dynamic}

    def training() -> None:
        micro(_ACTOR + "ppo_", **of_actor, trajectories=_check_mini_batch(config, options, _ACTOR))

    checks: list[Callable[[], object]] = [
        training,
        partial(micro, _ROLLOUT + "log_prob_", **of_actor, trajectories=batch),
    ]
    if need_reference_policy(config):
        dynamic = _REF + "log_prob_use_dynamic_bsz"
        checks.append(partial(micro, _REF + "log_prob_", model=_REF, dynamic=dynamic, trajectories=batch))
    if need_critic(config):  # its micro batches are always dynamic, and those of its training as large as the others
        key, most_tok = _CRITIC + "ppo_infer_max_token_len_per_gpu", CriticConfig.ppo_infer_max_token_len_per_gpu
        checks.append(partial(_check_mini_batch, config, options, _CRITIC))
        checks.append(partial(_check_longest, config, key, model=_CRITIC, default=most_tok))
    check_each(checks)


def _check_mini_batch(config: DictConfig, options: AsyncDAPOConfig, model: str) -> int:
    """verl fills a batch up with padding rows to a common multiple of ranks and mini batches, without a word.

    Returns the trajectories of a mini batch.
    """
    prompts, n = OmegaConf.select(config, key := model + "ppo_mini_batch_size"), options.rollout_n
    if options.target_valid_groups % prompts:
        raise refused(
            config,
            key,
            f"must divide data.train_batch_size={options.target_valid_groups}: verl would fill the last mini batch up "
            "with padding",
        )
    ranks = _num_ranks(config, model)
    if prompts * n % ranks:
        raise refused(
            config,
            key,
            f"times rollout.n={n} trajectories must be a multiple of the {ranks} data-parallel ranks; set a multiple "
            f"of {ranks // math.gcd(ranks, n)}",
        )
    return prompts * n


def _check_micro_batches(config: DictConfig, sizes: str, *, model: str, dynamic: str, trajectories: int) -> None:
    """A micro batch must hold the longest trajectory (dynamic), or divide what a rank gets (fixed).

    Args:
        sizes: what the names of the options begin with.
        dynamic: the option that says which of them holds.
        trajectories: of all ranks.
    """
    if OmegaConf.select(config, dynamic):
        _check_longest(config, sizes + "max_token_len_per_gpu", model=model)
        return
    key, per_rank = sizes + "micro_batch_size_per_gpu", trajectories // _num_ranks(config, model)
    value = OmegaConf.select(config, key)
    if value is None or per_rank % value:
        remedy = f"must divide the {per_rank} trajectories that a rank gets; or set {dynamic}=True"
        raise refused(config, key, remedy)


def _check_longest(config: DictConfig, key: str, *, model: str, default: int = 0) -> None:
    """
    Args:
        default: what verl takes for an option that is not there.
    """
    value = OmegaConf.select(config, key, default=default)
    longest_tok = config.data.max_prompt_length + config.data.max_response_length
    parallel = _sequence_parallel(config, model)
    if value is None or value * parallel < longest_tok:
        raise ConfigError(
            key,
            value,
            f"must be >= {-(-longest_tok // parallel)}: a trajectory can have {longest_tok} tokens, over "
            f"{parallel} sequence-parallel ranks; training would fail at the first long one",
        )


def _sequence_parallel(config: DictConfig, model: str) -> int:
    name = "ulysses_sequence_parallel_size"
    keys = (model + name, f"{model}fsdp_config.{name}", f"{model}fsdp.{name}")
    return max(OmegaConf.select(config, key) or 1 for key in keys)


def _num_ranks(config: DictConfig, model: str) -> int:
    """Data-parallel ranks of FSDP."""
    return max(1, training_gpus(config) // _sequence_parallel(config, model))
