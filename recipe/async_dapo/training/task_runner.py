"""The actor that trains on the cluster."""

import ray
from omegaconf import DictConfig

from ..runtime.containment import contained
from ..runtime.logs import log_phase, show_logs
from ..runtime.verl_version import check_versions


class AsyncDAPOTaskRunner:
    """verl's own runner is an actor class already, which cannot be subclassed; this one has the same duty."""

    def run(self, config: DictConfig) -> None:
        show_logs()
        log_phase("Ray is up; importing vLLM and the trainer")
        check_versions()
        from ..data_plane import check_cpus, queue_starts

        check_cpus(config)
        with contained():  # data sets, samplers and loggers of the user's run here
            with queue_starts(config):
                from .run import train  # vLLM and the trainer are imported here, not in the driver
            train(config)


AsyncDAPOTaskRunnerActor = ray.remote(num_cpus=1)(AsyncDAPOTaskRunner)
