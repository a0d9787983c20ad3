"""A run that starts a Ray node for itself: a node that does not come up is started again.

Where a node's main process (raylet) ends as it starts, `ray.init` waits for it in vain. Ray 2.60 ends it when an agent
of the node fails, for example because its port has been taken between its choice and its use.
"""

import logging
from typing import Any

from omegaconf import DictConfig

logger = logging.getLogger(__name__)

_STARTS = 3
_NOT_UP = "The current node timed out during startup"  # Ray's words


def run_on_ray(config: DictConfig, actor_class: Any) -> None:
    """verl's `run_ppo`, which starts a Ray node unless there is a cluster to join.

    Args:
        actor_class: the task runner's.

    Raises:
        Exception: what ended the run; Ray's own where no node came up.
    """
    import ray
    from verl.trainer.main_ppo import run_ppo

    for left in reversed(range(_STARTS)):
        try:
            run_ppo(config, task_runner_class=actor_class)
        except Exception as error:  # Ray has no class for it
            if not left or ray.is_initialized() or _NOT_UP not in str(error):
                raise
        else:
            return
        logger.warning("the Ray node of this run has not come up; starting another one")
        ray.shutdown()
