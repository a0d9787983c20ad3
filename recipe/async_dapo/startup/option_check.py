"""Names that verl looks up late, some of them only after the first rollout: those in its registries (loggers,
estimators, losses, reward managers), and those of options that were added with `+` or `++`.
"""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, ListConfig, OmegaConf

from ..option_values import ConfigError, check_choice, check_each, did_you_mean

# They need a field that the V1 trainer never computes, and fail after the first rollout.
UNSUPPORTED_ESTIMATORS = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")

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

# Nodes of which verl makes dataclasses, minutes after the start, in workers and servers.
TYPED_NODES = (
    "algorithm",
    "actor_rollout_ref.actor",
    "actor_rollout_ref.model",
    "actor_rollout_ref.rollout",
)


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


def check_option_names(config: DictConfig) -> None:
    """
    Raises:
        ConfigError: for an option that verl's dataclass of that node does not have.
    """
    nodes = [one for key in TYPED_NODES for one in _typed(OmegaConf.select(config, key), key)]
    check_each([partial(_check_name, name, node, option) for name, node in nodes for option in node])


def _check_name(name: str, node: DictConfig, option: Any) -> None:
    known = _names_of(node._target_)
    if option not in known:
        hint = did_you_mean(option, known) or "; remove it"
        raise ConfigError(f"{name}.{option!s}", node[option], f"verl has no such option{hint}")


@cache
def _names_of(target: str) -> frozenset[str]:
    return frozenset({field.name for field in fields(get_class(target))} | {"_target_"})


def _typed(node: Any, key: str) -> Iterator[tuple[str, DictConfig]]:
    if not isinstance(node, DictConfig):
        return
    if node.get("_target_"):
        yield key, node
    for name in node:
        if not OmegaConf.is_missing(node, name):
            yield from _typed(node._get_node(name), f"{key}.{name!s}")
