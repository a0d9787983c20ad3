"""Start-up checks: everything that can be known to be wrong before a cluster starts ends in a clear error."""

from importlib.util import find_spec
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ..config import AsyncDAPOConfig, ConfigError

REQUIRED_VERL_FILE = Path(__file__).with_name("REQUIRED_VERL.txt")


def check_versions() -> None:
    """Refuse any verl but the pinned one, be it installed or a folder `verl` of the checkout, which Python prefers.

    Asked by the driver, the task runner, and every server and agent loop worker on its own node.

    Raises:
        ConfigError: naming the version found, its folder and the command that installs the right one.
    """
    required = REQUIRED_VERL_FILE.read_text().strip()
    found = _found_verl()
    if found.split()[0] != required:
        raise ConfigError("verl", found, f"this recipe needs {required}; run: pip install '{required}'")


def _found_verl() -> str:
    """Version and folder of the verl that an import takes, without importing it."""
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        return "none"
    folder = Path(spec.origin).parent
    file = folder / "version" / "version"
    return f"verl=={file.read_text().strip() if file.is_file() else 'unknown'} in {folder}"


def check_all(config: DictConfig) -> AsyncDAPOConfig:
    """Check options, data and reward function: cheap checks first, and nothing that starts Ray.

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
    from .reward_check import check_reward

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
