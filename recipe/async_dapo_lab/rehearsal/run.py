"""The process that trains, started by `supervisor`: `python -m recipe.async_dapo_lab.rehearsal.run OVERRIDES`."""

import sys
from pathlib import Path
from typing import Any

import hydra
import ray
from omegaconf import DictConfig, OmegaConf

from ...async_dapo.config.options import CONFIG_FOLDER, CONFIG_NAME
from ...async_dapo.main_async_dapo import explained
from ...async_dapo.runtime.garbage import collect_cycles_rarely
from ...async_dapo.runtime.verl_version import check_versions
from ...async_dapo.startup.preflight import check_all
from .emulation import check_rehearsable, emulate, use_stand_in
from .options import RECIPE_MODE, WITH_REHEARSAL, RehearsalOptions, have_own_gpus

LAB_DIR = Path(__file__).resolve().parents[1]


def main() -> None:
    collect_cycles_rarely()
    with explained():
        check_versions()
    sys.argv[1:1] = WITH_REHEARSAL
    _run()


@hydra.main(config_path=str(CONFIG_FOLDER), config_name=CONFIG_NAME, version_base=None)
def _run(config: DictConfig) -> None:
    with explained():
        options = RehearsalOptions.from_hydra(config)
        if options.stand_in:
            use_stand_in(config, options)
        check_rehearsable(config)
        is_recipe = config.trainer.v1.trainer_mode == RECIPE_MODE
        if is_recipe:
            check_all(config)
        else:
            _check_verl_mode(config)
        options.step_cost(config, is_recipe=is_recipe)
        from verl.trainer.main_ppo import run_ppo

        from ...async_dapo.runtime.shipping import shipped

        options.folder.mkdir(parents=True, exist_ok=True)
        emulate(config, options)
        OmegaConf.save(config, options.folder / "config.yaml")
        with shipped(config, LAB_DIR) as first_actor:
            run_ppo(config, task_runner_class=first_actor(ray.remote(num_cpus=1)(RehearsalTaskRunner)))


class RehearsalTaskRunner:
    """The actor that trains, with the trainer class of the configured mode."""

    def run(self, config: DictConfig) -> None:
        from ...async_dapo.store import queue_starts

        with queue_starts(config):
            from ...async_dapo.training.run import train
            from .training import RehearsedAsyncDAPO, RehearsedSeparate
            from .verl_modes import VERL_MODES
        mode = config.trainer.v1.trainer_mode
        if mode == RECIPE_MODE:
            train(config, RehearsedSeparate if have_own_gpus(config) else RehearsedAsyncDAPO)
        else:
            _train_in_verl_mode(config, VERL_MODES[mode])


def _train_in_verl_mode(config: DictConfig, trainer_cls: Any) -> None:
    """As verl's own task runner, which looks its trainer class up by the mode's name."""
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.utils.logging_utils import configure_verl_logging

    from ...async_dapo.runtime.shipping import localise
    from ...async_dapo.store import end_queue

    configure_verl_logging()
    localise(config)  # verl's own workers open the files that the configuration names, as it names them
    config.transfer_queue.enable = True
    try:
        trainer = trainer_cls(config=config)
        trainer.init()
        manager = AgentLoopManagerTQ.create(
            config=config,
            llm_client=trainer.get_llm_client(),
            teacher_client=trainer.get_teacher_client(),
            reward_loop_worker_handles=trainer.get_reward_handles(),
        )
        trainer.fit(manager)
    finally:
        end_queue()


def _check_verl_mode(config: DictConfig) -> None:
    """What verl's own entry checks, and whether the mode can be rehearsed."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from ...async_dapo.config.values import ConfigError
    from .verl_modes import VERL_MODES

    mode = config.trainer.v1.trainer_mode
    if mode not in VERL_MODES:
        known = ", ".join([RECIPE_MODE, *VERL_MODES])
        raise ConfigError("trainer.v1.trainer_mode", mode, f"is not rehearsed; choose one of {known}")
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))


if __name__ == "__main__":
    main()
