"""A life on two nodes: what the nodes have started for a run counts as left behind, and the nodes themselves do not."""

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.faults import life as lives
from benchmarks.faults.cells import CUT_FOR_A_WHILE, Cell, Moment, Stack
from benchmarks.faults.two_nodes import TwoNodeLife
from recipe.async_dapo_lab.quickstart.supervision import TrainingProcess

# Starts one process at once, as a node its agent, and another one when the driver asks for it, as a node its actors.
NODE = """
import pathlib, subprocess, time
def start(title):
    subprocess.Popen([title, "600"], executable="/bin/sleep")
start("agent")
pathlib.Path("ready").touch()
while not pathlib.Path("asked").exists():
    time.sleep(0.02)
start("ray::Actor")
start("ray::IDLE")
pathlib.Path("started").touch()
time.sleep(600)
"""
DRIVER = "import pathlib; pathlib.Path('asked').touch()"


class LifeOnAStandIn(TwoNodeLife):
    """Without namespaces and Ray."""

    def _driver(self, command: list[str], environment: dict[str, str], log: Path) -> TrainingProcess:
        return TrainingProcess([sys.executable, "-c", DRIVER], environment=dict(os.environ), log_file=log)

    def _start_nodes(self, stack: ExitStack) -> None:
        command, log = [sys.executable, "-c", NODE], Path("node.log")
        self._head = stack.enter_context(  # no grace: what it has started sleeps on until it is killed
            TrainingProcess(command, environment=dict(os.environ), log_file=log, grace_s=0.0)
        )
        await_file("ready")


def await_file(name: str) -> None:
    deadline = time.monotonic() + 300.0
    while not Path(name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_given_an_actor_that_stays_on_a_node_when_the_driver_has_ended_then_it_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(lives, "GRACE_S", 0.2)
    monkeypatch.chdir(tmp_path)
    mended: list[Any] = []
    with LifeOnAStandIn([], tmp_path, number=1, stack=Stack.NODES, notes=tmp_path / "notes") as life:
        monkeypatch.setattr(life._cable, "mend", lambda: mended.append("mended"))
        await_file("started")
        while not life.has_ended:
            life.look()
        assert life.await_processes().processes == ("ray::Actor 600",)
    assert mended, "who is cut off cannot know of the end"


def test_given_a_cable_that_is_cut_when_the_life_ends_before_it_is_mended_then_nobody_mends_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done: list[Any] = []
    with LifeOnAStandIn([], tmp_path, number=1, stack=Stack.NODES, notes=tmp_path / "notes") as life:
        monkeypatch.setattr(life._cable, "cut", lambda: done.append("cut"))
        monkeypatch.setattr(life._cable, "mend", lambda: done.append("mended"))
        life._strike(Cell(stack=Stack.NODES, who="network", when=Moment.ROUND, how=CUT_FOR_A_WHILE, stop_s=5.0))
    assert done == ["cut"] and life._timer.finished.is_set()
