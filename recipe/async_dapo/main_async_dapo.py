"""Entry point: `python -m recipe.async_dapo.main_async_dapo <hydra overrides>`."""

import hydra
from omegaconf import DictConfig


@hydra.main(config_path="config", config_name="async_dapo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """Check versions, configuration, data and reward function; then train with verl on Ray."""
    from .preflight import check_all, check_versions

    check_versions()
    from verl.trainer.main_ppo import run_ppo
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    check_all(config)
    from .shipping import ship_recipe
    from .task_runner import AsyncDAPOTaskRunnerActor

    ship_recipe(config)
    run_ppo(config, task_runner_class=AsyncDAPOTaskRunnerActor)


if __name__ == "__main__":
    main()
