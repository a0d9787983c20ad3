"""One life of a run: from the start of its command to its end, with strikes on the way, and what it leaves behind."""

import os
import re
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.run_metrics import RunMetrics
from recipe.async_dapo_lab.quickstart.supervision import TrainingProcess

from .cells import KILL, LIFE, NOTES, SOCKET, STACK, Cell, Moment
from .victims import find, title_of

ROOT = Path(__file__).resolve().parents[2]
APPEARS_S = 60.0  # a process that is being started, on a busy machine
GRACE_S = 10.0  # for Ray's processes to follow a driver that has ended
_LOOK_S = 0.1
_BUFFER_BYTES = 64


@dataclass(slots=True, kw_only=True)
class Strike:
    """What became of a cell's victims."""

    cell: Cell
    at: float = 0.0  # [s, monotonic]
    steps_before: int = 0
    pids: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)  # a stopped victim goes on again


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """After the end of a run."""

    processes: tuple[str, ...]  # their titles
    sockets: int  # files
    shared_memory: tuple[str, ...]  # their names
    folders: int


class Life:
    """
    Args:
        folder: of this life only; with a short path, see `RayFolder`.
    """

    def __init__(self, command: Sequence[str], folder: Path, *, number: int, stack: str, notes: Path) -> None:
        self._temporary, self._ray = folder / "t", folder / "r"
        self._temporary.mkdir()
        self._ray.mkdir()
        self.log = folder / "train.log"
        self.metrics = RunMetrics(file=folder / "metrics.jsonl")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address := str(folder / "s"))
        environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=self._ray) | {
            "TMPDIR": str(self._temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),  # torch keeps one for all runs of a user
            SOCKET: address,
            NOTES: str(notes),
            LIFE: str(number),
            STACK: stack,
        }
        driver = [sys.executable, "-m", "benchmarks.faults.struck_run", *command, *self._own_overrides(folder)]
        self._process = self._driver(driver, environment, self.log)
        self._armed: tuple[Cell, float] | None = None
        self._timer = threading.Timer(0.0, lambda: None)  # by which a stopped victim goes on
        self._seen: set[Moment] = set()
        self.strike: Strike | None = None

    def _own_overrides(self, folder: Path) -> list[str]:
        return [f"hydra.run.dir={folder / 'hydra'}", f"++ray_kwargs.ray_init._temp_dir={self._ray}"]

    def _driver(self, command: list[str], environment: dict[str, str], log: Path) -> TrainingProcess:
        return TrainingProcess(command, environment=environment, log_file=log)

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        self._process.__enter__()
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._process.__exit__(kind, error, trace)
        self._socket.close()

    @property
    def has_ended(self) -> bool:
        return self._process.exit_code is not None

    @property
    def processes(self) -> list[psutil.Process]:
        return self._first.descendants()

    @property
    def _first(self) -> TrainingProcess:
        """What was started first, and so sees all that was started later."""
        return self._process

    def _own_processes(self) -> list[psutil.Process]:
        """Those that must end with the run."""
        return self.processes

    def look(self) -> None:
        """Wait for a moment, and read what is new."""
        self._process.watch(_LOOK_S)
        self.metrics.read_new()

    def has_passed(self, moment: Moment) -> bool:
        """Whether that comes once in a life and has been."""
        return moment.is_once and moment in self._seen

    def arm(self, cell: Cell, delay_s: float) -> None:
        """Strike at the cell's next moment."""
        self.strike, self._armed = None, (cell, delay_s)

    def await_processes(self) -> LeftOver:
        """What is left when the driver has ended, and its processes have had some time to follow."""
        processes = still_there(self._own_processes, after_s=GRACE_S)
        left = [path for path in self._temporary.rglob("*") if not path.is_relative_to(self._ray)]
        return LeftOver(
            processes=processes,
            sockets=sum(stat.S_ISSOCK(path.lstat().st_mode) for path in left),
            shared_memory=tuple(segment.name for segment in self._first.segments if segment.exists()),
            folders=sum(path.is_dir() and path.parent == self._temporary for path in left),
        )

    def last_line(self) -> str:
        """What the run says of its end."""
        lines = self.log.read_text(errors="replace").splitlines()
        ours = [line for line in lines if re.match("async_dapo: ", line)]
        return ours[-1] if ours else ""

    def end(self) -> None:
        self._process.end()

    def _listen(self) -> None:
        while True:
            try:
                said, waiting = self._socket.recvfrom(_BUFFER_BYTES)
            except OSError:  # closed
                return
            moment = Moment(said.decode())
            self._seen.add(moment)
            struck = None
            if self._armed is not None and self._armed[0].when is moment:
                (struck, delay_s), self._armed = self._armed, None
            if struck is None or not struck.holds_trainer:
                self._let_go_on(waiting)
                waiting = None
            if struck is not None:
                time.sleep(delay_s)
                self._strike(struck)
                self._let_go_on(waiting)

    def _let_go_on(self, waiting: str | None) -> None:
        """Who waits for an answer, if anybody; it may have been killed."""
        if waiting:
            with suppress(OSError):
                self._socket.sendto(b".", waiting)

    def _strike(self, cell: Cell) -> None:
        deadline = time.monotonic() + APPEARS_S
        while not (victims := self._find(cell)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        strike = Strike(cell=cell, at=time.monotonic(), steps_before=self.metrics.trained_steps)
        strike.pids = [victim.pid for victim in victims]
        self.strike = strike  # before the driver may be seen to have ended
        if cell.how == KILL:
            strike.done.set()
            _send(victims, signal.SIGKILL)
        else:
            _send(victims, signal.SIGSTOP)
            self._after(cell.stop_s, _go_on, victims, strike)

    def _find(self, cell: Cell) -> list[psutil.Process]:
        return find(cell.who, self._process.pid, self.processes)

    def _after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Unless the life is over by then."""
        self._timer = threading.Timer(seconds, act, args)
        self._timer.start()


def still_there(look: Callable[[], list[psutil.Process]], *, after_s: float) -> tuple[str, ...]:
    """The titles of those that have not ended by then: a look may miss processes while their parent ends."""
    deadline = time.monotonic() + after_s
    while (processes := look()) and (left_s := deadline - time.monotonic()) > 0:
        psutil.wait_procs(processes, timeout=left_s)
    return tuple(title for process in processes if (title := title_of(process)))


def _go_on(victims: Sequence[psutil.Process], strike: Strike) -> None:
    _send(victims, signal.SIGCONT)
    strike.done.set()


def _send(victims: Sequence[psutil.Process], number: signal.Signals) -> None:
    for victim in victims:
        try:
            victim.send_signal(number)
        except psutil.NoSuchProcess:
            pass
