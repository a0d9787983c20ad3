"""The fault matrix finds the parts of a run by the titles that Ray gives processes: the names of actors' classes."""

import re

import pytest

from benchmarks.faults.struck_run import StruckTaskRunner
from benchmarks.faults.victims import TITLES
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.engines.server_actor import ServerActor
from recipe.async_dapo.rollout.coordinator import CoordinatorProcess
from recipe.async_dapo.rollout.worker import AsyncDAPOAgentLoopWorker
from recipe.async_dapo_lab.rehearsal.host_actor import HostActor
from recipe.async_dapo_lab.rehearsal.worker import EmulatedRank

OURS = [
    ("agent loop worker", AsyncDAPOAgentLoopWorker),
    ("coordinator", CoordinatorProcess),
    ("load balancer", GlobalLoadBalancer),
    ("all servers", HostActor),
    ("server", ServerActor),
    ("training worker", EmulatedRank),
    ("task runner", StruckTaskRunner),
]


@pytest.mark.parametrize(("part", "kind"), OURS)
def test_given_the_process_of_an_actor_then_it_is_found_by_its_title(part: str, kind: type) -> None:
    name = kind.__name__
    assert re.match(TITLES[part], f"ray::{name}") and re.match(TITLES[part], f"ray::{name}.method")
