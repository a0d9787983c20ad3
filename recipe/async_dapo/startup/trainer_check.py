"""The trainer's own options: validation, checkpoints, storage of a step's trajectories."""

from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ..config import AsyncDAPOConfig, ConfigError
from ..options.values import check_each

_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."

# What a resumed run goes on from, in verl's words: weights, optimizer, and learning rate with random numbers.
_CHECKPOINT_PARTS = ("model", "optimizer", "extra")


def check_trainer(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check validation, checkpoints and storage.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    checks = (_check_validation, _check_critic, _check_checkpoints, _check_checkpoint_parts)
    check_each([*(partial(check, config) for check in checks), partial(_check_storage, config, options)])


def _check_validation(config: DictConfig) -> None:
    trainer = config.trainer
    if trainer.val_only and not trainer.val_before_train:
        raise ConfigError("trainer.val_only", True, "is ignored without trainer.val_before_train=True")
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    if sampling.n < 1:
        raise ConfigError(_ROLLOUT + "val_kwargs.n", sampling.n, "must be >= 1")
    if sampling.temperature == 0 and (sampling.n > 1 or sampling.do_sample):
        raise ConfigError(
            _ROLLOUT + "val_kwargs.temperature",
            sampling.temperature,
            f"gives the same answer {sampling.n} times, do_sample={sampling.do_sample} is ignored; set a temperature "
            "> 0, or n=1 and do_sample=False",
        )
    if sampling.temperature > 0 and not sampling.do_sample:
        raise ConfigError(
            _ROLLOUT + "val_kwargs.do_sample",
            False,
            f"verl ignores it, and val_kwargs.temperature={sampling.temperature} samples; set temperature=0 for greedy "
            "answers, or do_sample=True",
        )


def _check_critic(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic

    trainer = config.trainer
    if need_critic(config):
        path = Path(config.critic.model.path).expanduser()
        if config.critic.model.path.startswith(("/", "~", ".")) and not path.is_dir():
            raise ConfigError(
                "critic.model.path",
                config.critic.model.path,
                f"no such folder, and algorithm.adv_estimator={config.algorithm.adv_estimator} with "
                f"critic.enable={config.critic.enable} needs a critic; name its model, or set "
                "algorithm.adv_estimator=grpo and critic.enable=null",
            )
    elif trainer.critic_warmup > 0 and not need_critic(config):
        raise ConfigError(
            "trainer.critic_warmup", trainer.critic_warmup, "there is no critic, and the actor would not train; set 0"
        )


def _check_checkpoints(config: DictConfig) -> None:
    trainer = config.trainer
    if trainer.default_hdfs_dir is not None:
        raise ConfigError(
            "trainer.default_hdfs_dir",
            trainer.default_hdfs_dir,
            "verl copies the model there, but neither prompts nor buffer, and never resumes from it; set null, and "
            "trainer.default_local_dir to a shared folder",
        )
    if trainer.resume_mode != "resume_path" and trainer.resume_from_path:
        raise ConfigError(
            "trainer.resume_from_path",
            trainer.resume_from_path,
            f"is ignored with trainer.resume_mode={trainer.resume_mode}; set trainer.resume_mode=resume_path",
        )
    if trainer.resume_mode == "resume_path" and not trainer.resume_from_path:
        raise ConfigError("trainer.resume_from_path", None, "set it to a checkpoint folder, or resume_mode=auto")
    if config.actor_rollout_ref.actor.checkpoint.async_save:
        raise ConfigError(
            _ACTOR + "checkpoint.async_save",
            True,
            "nobody would know when a checkpoint is complete, and the one before can go; set False",
        )


def _check_checkpoint_parts(config: DictConfig) -> None:
    """verl loads what is named and goes on with new weights or a new optimizer otherwise, without a word."""
    from verl.trainer.ppo.utils import need_critic

    trainer = config.trainer
    acts = {"save_contents": trainer.save_freq > 0, "load_contents": trainer.resume_mode != "disable"}
    for node in (_ACTOR, "critic.") if need_critic(config) else (_ACTOR,):
        for name in (name for name, is_read in acts.items() if is_read):
            key = f"{node}checkpoint.{name}"
            parts = OmegaConf.select(config, key)
            if parts is not None and not set(_CHECKPOINT_PARTS) <= set(parts):
                raise ConfigError(
                    key,
                    parts,
                    f"must hold {', '.join(_CHECKPOINT_PARTS)}: a run could not go on from a checkpoint without them; "
                    "add what is missing, or set trainer.save_freq=-1 and trainer.resume_mode=disable",
                )


def _check_storage(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Trained and carried trajectories are stored; TransferQueue ends the run where they have no room."""
    backend = config.transfer_queue.backend
    limit = backend.SimpleStorage.total_storage_size
    held = options.over_sampling().batch_unit
    needed = (options.target_valid_groups + held) * options.rollout_n
    if backend.storage_backend == "SimpleStorage" and limit is not None and limit < needed:
        raise ConfigError(
            "transfer_queue.backend.SimpleStorage.total_storage_size",
            limit,
            f"must be >= {needed} trajectories: of data.train_batch_size and {held} groups that may be carried over",
        )
