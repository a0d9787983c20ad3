"""Start-up checks: everything that can be known to be wrong before a cluster starts ends in a clear error."""

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ..config import AsyncDAPOConfig, ConfigError


def check_all(config: DictConfig) -> AsyncDAPOConfig:
    """Check options, checkpoint, data and reward function: cheap checks first, and nothing that starts Ray.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    try:
        return _check_all(config)
    except OmegaConfBaseException as error:
        what = str(error).split("\n")[0]
        raise ConfigError(error.full_key or "config", "<unreadable>", f"{what}; correct the override") from error


def _check_all(config: DictConfig) -> AsyncDAPOConfig:
    options = AsyncDAPOConfig.from_hydra(config)
    _check_options(config, options)
    from .data_check import check_data
    from .model_check import check_context
    from .resume_check import check_resume
    from .reward_check import check_reward

    check_resume(config)
    rows = check_data(config, options)
    check_context(config)
    if options.reward.check_at_start:
        check_reward(config, options, rows)
    return options


def _check_options(config: DictConfig, options: AsyncDAPOConfig) -> None:
    from .verl_options import check_verl_options

    check_verl_options(config)
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from .verl_combinations import check_combinations

    auto_set_device(config)
    check_combinations(config, options)
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
    except (ValueError, AssertionError, HydraException) as error:
        raise ConfigError("verl", "validate_config", f"verl refuses these options: {error}") from error
