"""The process that trains, started by `supervisor`: `python -m recipe.async_dapo_lab.rehearsal.run OVERRIDES`."""

import sys
from pathlib import Path

import hydra
import ray
from omegaconf import DictConfig, OmegaConf

from ...async_dapo.config.options import CONFIG_FOLDER, CONFIG_NAME
from ...async_dapo.main_async_dapo import explained
from ...async_dapo.runtime.garbage import collect_cycles_rarely
from ...async_dapo.runtime.verl_version import check_versions
from ...async_dapo.startup.preflight import check_all
from ..overrides import before_overrides
from .emulation import check_rehearsable, emulate, use_stand_in
from .options import CONFIG, WITH_REHEARSAL, RehearsalOptions

LAB_DIR = Path(__file__).resolve().parents[1]


def main() -> None:
    collect_cycles_rarely()
    with explained():
        check_versions()
    sys.argv[1:] = before_overrides(sys.argv[1:], *WITH_REHEARSAL)
    _run()


@hydra.main(config_path=str(CONFIG_FOLDER), config_name=CONFIG_NAME, version_base=None)
def _run(config: DictConfig) -> None:
    with explained():
        options = RehearsalOptions.from_hydra(config)
        if options.stand_in:
            use_stand_in(config, options)
        check_rehearsable(config)
        check_all(config)
        options.step_cost(config)
        from ...async_dapo.runtime.node_start import run_on_ray

        options.folder.mkdir(parents=True, exist_ok=True)
        emulate(config, options)
        if options.agent_turns is not None:
            from .agents import script_agents  # needs an extension

            script_agents(config, options)
        part = options.folder / f"{CONFIG}.part"
        OmegaConf.save(config, part)
        part.replace(options.folder / CONFIG)  # the supervisor reads it as soon as it is there
        run_on_ray(config, ray.remote(num_cpus=1)(RehearsalTaskRunner), LAB_DIR)


class RehearsalTaskRunner:
    """The actor that trains."""

    def run(self, config: DictConfig) -> None:
        from ...async_dapo.data_plane import queue_starts

        with queue_starts(config):
            from ...async_dapo.training.run import train
            from .training import RehearsedAsyncDAPO
        train(config, RehearsedAsyncDAPO)


if __name__ == "__main__":
    main()
