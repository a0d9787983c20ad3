"""Names that verl looks up in its registries, some of them only after the first rollout."""

from functools import partial
from importlib.util import find_spec

from omegaconf import DictConfig, ListConfig

from ..options.values import ConfigError, check_choice, check_each
from .algorithm_check import UNSUPPORTED_ESTIMATORS

# Logger -> the package that it imports where training runs.
LOGGER_PACKAGES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "vemlp_wandb": "volcengine_ml_platform",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
    "trackio": "trackio",
    "rl_insight": "rl_insight",
}
KL_LOSSES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+")


def check_choices(config: DictConfig) -> None:
    """Check the names of loggers, estimators, losses and reward managers.

    Raises:
        ConfigError: naming key, value, the choices, and the one most like it.
    """
    loggers = config.trainer.logger
    names = loggers if isinstance(loggers, list | ListConfig) else [loggers]
    rest = [partial(check, config) for check in (_check_estimator, _check_loss, _check_kl_loss, _check_reward_manager)]
    check_each([*(partial(_check_logger, name) for name in names), *rest])


def _check_logger(name: str) -> None:
    from verl.utils.tracking import Tracking

    check_choice("trainer.logger", name, Tracking.supported_backend)
    package = LOGGER_PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            "trainer.logger", name, f"needs the package {package}, which is not installed; install or drop it"
        )


def _check_estimator(config: DictConfig) -> None:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    if config.actor_rollout_ref.model.external_lib is None:  # it may register others
        estimators = [str(getattr(name, "value", name)) for name in ADV_ESTIMATOR_REGISTRY]
        if config.algorithm.adv_estimator not in UNSUPPORTED_ESTIMATORS:
            supported = [name for name in estimators if name not in UNSUPPORTED_ESTIMATORS]
            check_choice("algorithm.adv_estimator", config.algorithm.adv_estimator, supported)


def _check_loss(config: DictConfig) -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    loss_mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if config.actor_rollout_ref.model.external_lib is None:
        check_choice("actor_rollout_ref.actor.policy_loss.loss_mode", loss_mode, POLICY_LOSS_REGISTRY)


def _check_kl_loss(config: DictConfig) -> None:
    actor = config.actor_rollout_ref.actor
    if actor.use_kl_loss:
        check_choice("actor_rollout_ref.actor.kl_loss_type", actor.kl_loss_type, KL_LOSSES)


def _check_reward_manager(config: DictConfig) -> None:
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    manager = config.reward.reward_manager
    if manager.source == "register":
        check_choice("reward.reward_manager.name", manager.name, REWARD_MANAGER)
