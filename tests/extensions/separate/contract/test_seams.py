"""What is relied on elsewhere: actors that start fast, titles of processes, training workers, declared metrics."""

import inspect
import re

import pytest

from benchmarks.faults.victims import TITLES
from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.engines.replica import AsyncDAPOReplica
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.engines.server_actor import ServerActor
from recipe.async_dapo.extensions.separate.balancer import RollingLoadBalancer
from recipe.async_dapo.extensions.separate.declared import DECLARED
from recipe.async_dapo.extensions.separate.engines import SeparateReplica
from recipe.async_dapo.extensions.separate.holding_actor import METHODS, HoldingServerActor
from recipe.async_dapo.extensions.separate.holding_server import HoldingServer
from recipe.async_dapo.extensions.separate.trainer import SeparateTrainer
from recipe.async_dapo.record.keys import PREFIX

from ....support.chosen_workers import assert_policies_have_the_recipes_worker
from ....support.light_imports import HEAVY, assert_imports_without
from ....support.simulated_cluster import Cluster
from ....support.simulated_options import options
from ....support.simulated_worker import random_task
from ..support.separate_cluster import SeparateCluster, separate_options

EXTENSION = "recipe.async_dapo.extensions.separate"


@pytest.mark.slow
def test_a_process_that_gets_a_handle_of_an_actor_imports_nothing_that_is_heavy() -> None:
    assert_imports_without(HEAVY, (f"{EXTENSION}.balancer", f"{EXTENSION}.coordinator", f"{EXTENSION}.holding_actor"))


def test_the_servers_actor_answers_every_call_that_the_server_does() -> None:
    public = {name for name, _ in inspect.getmembers(HoldingServer, inspect.isfunction) if not name.startswith("_")}
    core = {name for name, _ in inspect.getmembers(AsyncDAPOServer, inspect.isfunction)}
    assert set(METHODS) == public - core
    assert all(inspect.iscoroutinefunction(getattr(HoldingServerActor, name)) for name in METHODS)
    assert SeparateReplica.actor_class is HoldingServerActor and AsyncDAPOReplica.actor_class is ServerActor


@pytest.mark.parametrize(("part", "actor"), [("load balancer", RollingLoadBalancer), ("server", HoldingServerActor)])
def test_given_the_process_of_an_actor_then_the_fault_matrix_finds_it_by_its_title(part: str, actor: type) -> None:
    assert re.match(TITLES[part], f"ray::{actor.__name__}.method")


def test_given_all_models_when_their_workers_are_chosen_then_policies_have_this_recipes(monkeypatch):
    assert_policies_have_the_recipes_worker(monkeypatch, SeparateTrainer)


def test_the_metrics_that_it_adds_to_a_step_are_those_that_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    own, shared = separate_options(RolloutStrategy.PARTIAL), options(rollout_strategy=RolloutStrategy.PARTIAL)
    emitted = []
    for kind, opts in ((SeparateCluster, own), (Cluster, shared)):
        with monkeypatch.context() as patch:
            cluster = kind(patch, opts, task=random_task(0))
            emitted.append(set(cluster.step()))
        cluster.close()
    assert emitted[0] - emitted[1] == {PREFIX + name for name in DECLARED.metrics}
