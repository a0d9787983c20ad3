"""From the driver to the cluster: starts Ray, or joins it, and the actor that trains; and ends it.

Where a node's main process (raylet) ends as it starts, `ray.init` waits for it in vain. Ray 2.60 ends it when an agent
of the node fails, for example because its port has been taken between its choice and its use. So a node that does not
come up is started again.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from .interruption import stay_interruptible
from .shipping import staged

logger = logging.getLogger(__name__)

_STARTS = 3
_NOT_UP = "The current node timed out during startup"  # Ray's words


def run_on_ray(config: DictConfig, actor_class: Any, *beside: Path) -> None:
    """verl's `run_ppo`, which starts a Ray node unless there is a cluster to join. Changes `config` in place.

    Args:
        actor_class: the task runner's.
        beside: packages in the recipe's own parent folder that other nodes need, too.

    Raises:
        ConfigError: for a file to ship that does not exist.
        Exception: what ended the run; Ray's own where no node came up.
    """
    import ray
    from verl.trainer.main_ppo import run_ppo

    with staged(config, *beside) as ray_has_it:
        for left in reversed(range(_STARTS)):
            try:
                run_ppo(config, task_runner_class=_FirstActor(ray_has_it, actor_class))
            except Exception as error:  # Ray has no class for it
                if not left or ray.is_initialized() or _NOT_UP not in str(error):
                    raise
            else:
                return
            logger.warning("the Ray node of this run has not come up; starting another one")
            ray.shutdown()


class _FirstActor:
    """An actor class whose first actor is made when Ray has started."""

    def __init__(self, ray_has_it: Callable[[], None], actor_class: Any) -> None:
        self._ray_has_it, self._actor_class = ray_has_it, actor_class

    def options(self, **options: Any) -> "_FirstActor":
        return _FirstActor(self._ray_has_it, self._actor_class.options(**options))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        self._ray_has_it()
        stay_interruptible()
        _tell_of_missing_cpus()
        return self._actor_class.remote(*args, **kwargs)


def _tell_of_missing_cpus() -> None:
    """Nothing starts on a head that offers none; Ray waits for other nodes in silence."""
    import ray

    if not ray.cluster_resources().get("CPU"):
        logger.warning(
            "no node of this Ray cluster offers a CPU: the run waits until one joins that does; start it with "
            "`ray start --address=... --num-cpus=...`"
        )


def end_ray() -> None:
    """Its processes end, and with them their output."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()
    sys.stdout.flush()
