"""Starts Ray and the first actor of a run: a node that does not come up is started again, whatever else ends a run ends
it."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import verl.trainer.main_ppo
from ray._private.utils import update_envs

from recipe.async_dapo.config import extensions
from recipe.async_dapo.runtime import node_start
from recipe.async_dapo.runtime.node_start import run_on_ray
from recipe.async_dapo.runtime.shipping import staged

NOT_UP = Exception("The current node timed out during startup. This could happen because some of the raylet failed.")


class ActorClass:
    def remote(self, *arguments: str) -> tuple[str, ...]:
        return arguments

    def options(self, **_: str) -> "ActorClass":
        return self


@pytest.fixture
def runs_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a function in the place of verl's, on a cluster with these resources."""

    def put(run_ppo: Callable[..., None], **resources: float) -> None:
        monkeypatch.setattr(verl.trainer.main_ppo, "run_ppo", run_ppo)
        monkeypatch.setattr("ray.cluster_resources", lambda: resources)

    return put


@pytest.mark.parametrize(
    ("ends", "starts", "error"),
    [
        ([None], 1, None),
        ([NOT_UP, NOT_UP, None], 3, None),
        ([NOT_UP, NOT_UP, NOT_UP], 3, NOT_UP),
        ([NOT_UP, ValueError("no actor")], 2, "no actor"),
    ],
)
def test_a_node_that_does_not_come_up_is_started_again(run, runs_on, ends, starts, error) -> None:
    left = iter(ends)

    def run_ppo(config: Any, task_runner_class: Any) -> None:
        nonlocal starts
        starts -= 1
        if (end := next(left)) is not None:
            raise end

    runs_on(run_ppo)
    if error is None:
        run_on_ray(run(), ActorClass())
    else:
        with pytest.raises(Exception, match=str(error)):
            run_on_ray(run(), ActorClass())
    assert starts == 0


@pytest.mark.parametrize("ships", [True, False])
@pytest.mark.parametrize(("resources", "warnings"), [({"CPU": 2.0}, 0), ({"memory": 1e9}, 1)])
def test_the_first_actor_is_the_task_runner_and_on_a_cluster_without_cpus_it_is_said_what_the_run_waits_for(
    run, runs_on, monkeypatch, caplog, ships, resources, warnings
) -> None:
    if not ships:
        monkeypatch.setattr(extensions, "declared", dict)
    made = []

    def run_ppo(config: Any, task_runner_class: Any) -> None:
        made.append(task_runner_class.options(name="runner").remote("argument"))

    runs_on(run_ppo, **resources)
    with caplog.at_level("WARNING", logger=node_start.__name__):
        run_on_ray(run(), ActorClass())
    assert made == [("argument",)]
    assert caplog.text.count("no node of this Ray cluster offers a CPU: the run waits until one joins") == warnings


def test_given_a_copy_that_ships_nothing_when_it_joins_a_cluster_then_processes_find_the_recipe_and_the_drivers_places(
    run, files, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(extensions, "declared", dict)
    monkeypatch.chdir(files)
    config = run(
        "trainer.default_local_dir=made", "data.train_files=train.parquet", "actor_rollout_ref.model.path=model"
    )
    with staged(config):
        places = config.trainer.default_local_dir, config.data.train_files, config.actor_rollout_ref.model.path
        told = config.ray_kwargs.ray_init.runtime_env
    assert places == (f"{files}/made", f"{files}/train.parquet", f"{files}/model")
    module, _, function = told.worker_process_setup_hook.rpartition(".")
    code = f"import gc, {module} as module; module.{function}(); print(gc.get_threshold()[0])"
    monkeypatch.setattr(os, "environ", os.environ | {"PYTHONPATH": "/own/of/the/node"})
    update_envs(dict(told.env_vars))  # as Ray does there
    assert os.environ["PYTHONPATH"].endswith(f"{os.pathsep}/own/of/the/node")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, capture_output=True, timeout=300)
    assert done.stdout == b"50000\n", done.stderr
    assert told.env_vars.VERL_DATAPROTO_SERIALIZATION_METHOD == "numpy"
