"""The end of what is left of an engine, on real processes."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recipe.async_dapo.engines import processes
from recipe.async_dapo.engines.processes import EngineProcesses


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(processes, "sockets_folder", lambda: tmp_path / "sockets")
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


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


def test_given_an_engine_that_died_by_an_exception_when_its_processes_are_ended_then_its_log_says_which(
    child, logs
) -> None:
    log = logs / f"worker-3f2a-01000000-{child.pid}.out"
    log.write_text(
        "WARNING a long log\n" * 50_000 + "(EngineCore pid=7) ERROR [core.py:1] EngineCore failed to start.\r\n"
    )
    with log.open("a") as file:
        file.write("(EngineCore pid=7) ERROR [core.py:1] Traceback (most recent call last):\r\n")
        file.write("(EngineCore pid=7) ERROR [core.py:1] ValueError: no room\n")
    (logs / f"worker-3f2a-01000000-1{child.pid}.out").write_text("another's")
    assert of(child).end(timeout_s=30.0) == "ValueError: no room"
