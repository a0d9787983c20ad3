"""The end of what is left of an engine, on real processes."""

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from recipe.async_dapo.engines.replica import FIRST_SLEEP_TIMES, AsyncDAPOReplica
from recipe.async_dapo.engines.server import EngineProcesses

from ..support.simulation import simulate


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def of(process: psutil.Process) -> EngineProcesses:
    return EngineProcesses(node="10.0.0.7", pid=process.pid, started=((process.pid, process.create_time()),))


def test_given_a_process_that_survives_its_kill_then_the_error_names_it(child, monkeypatch) -> None:
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None)
    with pytest.raises(TimeoutError, match=rf"engine processes {child.pid} on node 10\.0\.0\.7 "):
        of(child).end(timeout_s=0.05)


def test_given_a_process_that_is_dead_and_that_nobody_reaps_then_it_is_not_waited_for(child, monkeypatch) -> None:
    monkeypatch.setattr(psutil, "wait_procs", lambda processes, timeout: ([], processes))  # as if it were no child
    engine = of(child)
    engine.end(timeout_s=30.0)
    assert child.status() == psutil.STATUS_ZOMBIE


def test_given_another_process_with_the_same_id_then_it_is_left_alone(child) -> None:
    EngineProcesses(node="10.0.0.7", pid=child.pid, started=((child.pid, 1.0),)).end(timeout_s=0.05)
    assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE


LIMIT_S = 120.0


def test_the_first_sleep_of_an_engine_may_take_longer_than_the_next_ones(monkeypatch) -> None:
    async def sleep(self: Any) -> None:
        await asyncio.sleep(3 * LIMIT_S)

    monkeypatch.setattr(vLLMReplica, "sleep", sleep)
    replica: Any = AsyncDAPOReplica.__new__(AsyncDAPOReplica)
    replica.replica_rank, replica.processes, replica._engine_timeout_s, replica._has_slept = 0, [], LIMIT_S, False
    assert FIRST_SLEEP_TIMES > 3
    simulate(replica.sleep())
    with pytest.raises(TimeoutError, match=r"has not gone to sleep within async_dapo\.engine_timeout_s=120"):
        simulate(replica.sleep())
