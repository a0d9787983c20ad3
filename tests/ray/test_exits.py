"""`SystemExit` and `KeyboardInterrupt` in an actor's event loop."""

import threading

import pytest
import ray

from recipe.async_dapo.runtime.actor_watch import ActorDied, watched
from recipe.async_dapo.runtime.containment import CodeExited, contain_tasks

from ..support.plain_actors import Exiting
from ..support.real_actors import PATIENCE_S


@pytest.mark.usefixtures("local_cluster")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_given_an_exit_in_a_task_then_its_call_fails_and_in_a_callback_then_the_actor_dies(kind):
    actor = ray.remote(num_cpus=0)(Exiting).remote()
    ray.get(actor.__ray_call__.remote(contain_tasks))
    with pytest.raises(CodeExited, match=kind.__name__):
        ray.get(actor.raise_in_task.remote(kind), timeout=PATIENCE_S)
    actor.raise_in_callback.remote(kind)
    with pytest.raises(ActorDied, match="agent loop worker 0 died"), watched({"agent loop worker 0": actor}):
        threading.Event().wait(PATIENCE_S)
