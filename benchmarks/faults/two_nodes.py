"""A life on two Ray nodes, each in a network namespace of its own, whose cable can be cut. On Linux, as root."""

import os
import re
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psutil

from recipe.async_dapo_lab.own_ray import OWN_RAY_ENVIRONMENT, PATIENCE
from recipe.async_dapo_lab.quickstart.supervision import TrainingProcess

from .cells import CUT, CUT_FOR_A_WHILE, Cell, Stack
from .life import ROOT, LeftOver, Life, Strike
from .victims import find, title_of

HEAD, SECOND, PORT = "10.77.0.1", "10.77.0.2", 6379
START_S, STARTS = 600.0, 3  # of a Ray node: the time for all of them, on a busy machine
# A node is dead that fails five checks in a row, 3 s apart: after 15 to 25 s. With Ray's own limit of 10 s for a check
# it takes up to 65 s until a node that cannot be reached is given up.
HEALTH = {"RAY_health_check_timeout_ms": "2000"}
# What head and second node have. Ray puts a bundle where the largest share is left: with one engine apart the trainer
# goes to the head.
_TRAINER_AND_ENGINES = ("--num-gpus=2", "--num-cpus=64"), ("--num-gpus=0", "--num-cpus=64")
_ONE_ENGINE_APART = ("--num-gpus=2", "--num-cpus=64"), ("--num-gpus=1", "--num-cpus=64")
_NODE = ("--object-store-memory=300000000",)
_RAY = Path(sys.executable).with_name("ray")
_OF_RAY = re.compile(r"ray::(IDLE|\w+Agent)\b")


class Cable:
    """Two namespaces and what connects them; gone on exit."""

    def __init__(self) -> None:
        self._names = [f"faults-{os.getpid()}-{end}" for end in ("head", "second")]

    def __enter__(self) -> Self:
        try:
            self._lay()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _lay(self) -> None:
        for name in self._names:
            _ip(f"netns add {name}")
        ends = [f"f{os.getpid() % 100_000}{end}" for end in "ab"]
        _ip(f"link add {ends[0]} type veth peer name {ends[1]}")
        for name, end, address in zip(self._names, ends, (HEAD, SECOND), strict=True):
            _ip(f"link set {end} netns {name}")
            _ip(f"-n {name} addr add {address}/24 dev {end}")
            _ip(f"-n {name} link set {end} up")
            _ip(f"-n {name} link set lo up")
        self._end = ends[1]

    def __exit__(self, *error: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def within(self, side: int, command: list[str]) -> list[str]:
        """A command, to be run at the head's side (0) or at the other one (1)."""
        return ["ip", "netns", "exec", self._names[side], *command]

    def cut(self) -> None:
        _ip(f"-n {self._names[1]} link set {self._end} down")

    def mend(self) -> None:
        _ip(f"-n {self._names[1]} link set {self._end} up")


class TwoNodeLife(Life):
    """Its driver is on the head's node; Ray spreads the actors over both."""

    def __init__(self, command: list[str], folder: Path, *, stack: Stack, **kwargs: Any) -> None:
        self._cable = Cable()
        self._nodes = _ONE_ENGINE_APART if stack.is_separate else _TRAINER_AND_ENGINES
        super().__init__(command, folder, stack=stack, **kwargs)

    def _own_overrides(self, folder: Path) -> list[str]:
        return [f"hydra.run.dir={folder / 'hydra'}"]

    def _driver(self, command: list[str], environment: dict[str, str], log: Path) -> TrainingProcess:
        others = {name: value for name, value in environment.items() if name not in OWN_RAY_ENVIRONMENT}
        self._environment = (
            others | PATIENCE | HEALTH | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        )
        joined = self._environment | {"RAY_ADDRESS": f"{HEAD}:{PORT}"}
        return super()._driver(self._cable.within(0, command), joined, log)

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # a node or a driver that does not start leaves nothing
            self._start_nodes(stack)
            self._of_nodes = frozenset(self.processes)
            super().__enter__()
            self._stack = stack.pop_all()
        return self

    def _start_nodes(self, stack: ExitStack) -> None:
        stack.enter_context(self._cable)
        head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self._ray}")
        self._head = self._start_node(stack, 0, f"--node-ip-address={HEAD}", *head, *self._nodes[0])
        joins = (f"--address={HEAD}:{PORT}",)
        self._second = self._start_node(stack, 1, f"--node-ip-address={SECOND}", *joins, *self._nodes[1])

    def __exit__(self, *error: Any) -> None:
        with self._stack:
            super().__exit__(*error)

    @property
    def _first(self) -> TrainingProcess:
        return self._head

    def _own_processes(self) -> list[psutil.Process]:
        """Without those of the nodes, which stay, and without workers that Ray keeps for others."""
        return [one for one in self.processes if one not in self._of_nodes and not _OF_RAY.match(title_of(one))]

    def await_processes(self) -> LeftOver:
        """With the cable mended: who is cut off cannot know that the run has ended."""
        self._cable.mend()
        return super().await_processes()

    def look(self) -> None:
        self._head.watch(0.0)  # notes what the nodes use
        super().look()

    def _find(self, cell: Cell) -> list[psutil.Process]:
        """On the second node."""
        return find(cell.who, self._process.pid, self._second.descendants())

    def _start_node(self, stack: ExitStack, side: int, *arguments: str) -> TrainingProcess:
        command = self._cable.within(side, [str(_RAY), "start", "--block", *_NODE, *arguments])
        log = self.log.with_name(f"node-{side}.log")
        return start_node(stack, command, environment=self._environment, log=log)

    def _strike(self, cell: Cell) -> None:
        if cell.how not in (CUT, CUT_FOR_A_WHILE):
            super()._strike(cell)
            return
        self.strike = Strike(
            cell=cell, at=time.monotonic(), steps_before=self.metrics.trained_steps, pids=[self._process.pid]
        )
        self._cable.cut()
        if cell.how == CUT:
            self.strike.done.set()
        else:
            self._after(cell.stop_s, self._go_on, self.strike)

    def _go_on(self, strike: Strike) -> None:
        try:
            self._cable.mend()
        finally:
            strike.done.set()


def start_node(stack: ExitStack, command: list[str], *, environment: dict[str, str], log: Path) -> TrainingProcess:
    """Run `ray start --block` until its node is up; one that gives up is started again, twice at most.

    Args:
        stack: ends the node.

    Raises:
        TimeoutError: with the end of its log.
    """
    deadline = time.monotonic() + START_S
    for _ in range(STARTS):
        node = stack.enter_context(TrainingProcess(command, environment=environment, log_file=log))
        while node.exit_code is None and time.monotonic() < deadline:
            node.watch(0.2)
            if "Ray runtime started" in log.read_text():
                return node
        node.end()
    raise TimeoutError(log.read_text()[-2000:])


def may_cut() -> bool:
    """Whether this machine lets us have namespaces."""
    try:
        with Cable():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, cwd=ROOT, capture_output=True)
