"""A training run of the fault matrix: `python -m benchmarks.faults.struck_run <hydra overrides>`; `life` starts it."""

import os
import sys
from pathlib import Path

import hydra
import ray
from omegaconf import DictConfig, OmegaConf, open_dict

from benchmarks.faults.cells import STACK, Stack
from recipe.async_dapo.main_async_dapo import explained
from recipe.async_dapo.runtime.garbage import collect_cycles_rarely
from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo_lab.own_ray import end_ray_with_this_process
from recipe.async_dapo_lab.rehearsal.options import WITH_REHEARSAL, RehearsalOptions

_OF_A_CLUSTER = ("num_cpus", "num_gpus", "object_store_memory", "_temp_dir")


class StruckTaskRunner:
    def run(self, config: DictConfig) -> None:
        from recipe.async_dapo.data_plane import queue_starts

        with queue_starts(config):
            from benchmarks.faults.announcing import struck_trainer
            from recipe.async_dapo.training.run import train
        train(config, struck_trainer(Stack(os.environ[STACK])))


@hydra.main(config_path="../../recipe/async_dapo/config", config_name="async_dapo_trainer", version_base=None)
def _run(config: DictConfig) -> None:
    with explained():
        if Stack(os.environ[STACK]).is_rehearsed:
            _rehearse(config)
        else:
            check_all(config)
        if "RAY_ADDRESS" in os.environ:  # the cluster has been given these
            with open_dict(config):
                config.ray_kwargs.ray_init.update(dict.fromkeys(_OF_A_CLUSTER))
        from recipe.async_dapo.runtime.node_start import run_on_ray

        run_on_ray(config, ray.remote(num_cpus=1)(StruckTaskRunner))


def _rehearse(config: DictConfig) -> None:
    from recipe.async_dapo_lab.rehearsal.emulation import emulate, use_stand_in

    options = RehearsalOptions.from_hydra(config)
    use_stand_in(config, options)
    folder = Path(config.trainer.default_local_dir)
    check_all(config)
    options.folder.mkdir(parents=True, exist_ok=True)
    emulate(config, options)
    OmegaConf.save(config, options.folder / "config.yaml")
    with open_dict(config):  # unlike other rehearsals it goes on where the last life ended
        config.trainer.default_local_dir = str(folder)
        config.trainer.resume_mode = "auto"


if __name__ == "__main__":
    collect_cycles_rarely()
    end_ray_with_this_process()
    if Stack(os.environ[STACK]).is_rehearsed:
        sys.argv[1:1] = WITH_REHEARSAL
    _run()
