"""A life on two Ray nodes, each in a network namespace of its own, whose cable can be cut. On Linux, as root."""

import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from recipe.async_dapo.cpu.supervision import TrainingProcess
from recipe.async_dapo.own_ray import OWN_RAY_ENVIRONMENT

from .cells import CUT, Cell
from .life import ROOT, Life, Strike

HEAD, SECOND, PORT = "10.77.0.1", "10.77.0.2", 6379
START_S = 120.0  # of a Ray node, on a busy machine
_RAY = Path(sys.executable).with_name("ray")


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

    def __init__(self, command: list[str], folder: Path, **kwargs: Any) -> None:
        self._cable = Cable()
        super().__init__(command, folder, **kwargs)

    def _own_overrides(self, folder: Path) -> list[str]:
        return [f"hydra.run.dir={folder / 'hydra'}", "actor_rollout_ref.rollout.agent.num_workers=2"]

    def _driver(self, command: list[str], environment: dict[str, str], log: Path) -> TrainingProcess:
        others = {name: value for name, value in environment.items() if name not in OWN_RAY_ENVIRONMENT}
        self._environment = others | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        joined = self._environment | {"RAY_ADDRESS": f"{HEAD}:{PORT}"}
        return super()._driver(self._cable.within(0, command), joined, log)

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # a node or a driver that does not start leaves nothing
            self._start_nodes(stack)
            super().__enter__()
            self._stack = stack.pop_all()
        return self

    def _start_nodes(self, stack: ExitStack) -> None:
        stack.enter_context(self._cable)
        both = ("--object-store-memory=300000000", "--num-cpus=64")
        head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self._ray}", "--num-gpus=2")
        self._start_node(stack, 0, f"--node-ip-address={HEAD}", *head, *both)
        self._start_node(stack, 1, f"--node-ip-address={SECOND}", f"--address={HEAD}:{PORT}", "--num-gpus=0", *both)

    def __exit__(self, *error: Any) -> None:
        with self._stack:
            super().__exit__(*error)

    def _start_node(self, stack: ExitStack, side: int, *arguments: str) -> None:
        log = self.log.with_name(f"node-{side}.log")
        command = self._cable.within(side, [str(_RAY), "start", "--block", *arguments])
        node = stack.enter_context(TrainingProcess(command, environment=self._environment, log_file=log))
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            node.watch(0.2)
            assert node.exit_code is None and time.monotonic() < deadline, log.read_text()[-2000:]

    def _strike(self, cell: Cell) -> None:
        self.strike = Strike(
            cell=cell, at=time.monotonic(), steps_before=self.metrics.trained_steps, pids=[self._process.pid]
        )
        self._cable.cut()
        if cell.how == CUT:
            self.strike.done.set()
        else:
            threading.Timer(cell.stop_s, self._go_on, args=(self.strike,)).start()

    def _go_on(self, strike: Strike) -> None:
        try:
            self._cable.mend()
        finally:
            strike.done.set()


def may_cut() -> bool:
    """Whether this machine lets us have namespaces."""
    try:
        with Cable():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, cwd=ROOT, capture_output=True)
