"""What a check takes and leaves: least free memory while it runs, and processes and shared memory that outlive it."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from ..quickstart.supervision import TrainingProcess
from .verdicts import Verdict, first_failure

MARK = "ASYNC_DAPO_GPU_CHECK"  # a variable of all that a run of the command starts; its value is the run's own
HOST = "host"
_SHARED_MEMORY = Path("/dev/shm")
_EVERY_S = 1.0
GRACE_S = 10.0  # after the end of what was killed, others unlink its shared memory
_GB = 1e9


class LeastFree:
    """Least free memory of each GPU, or of the host where the device is a CPU, seen once a second [GB]."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._next_s = 0.0
        self.gb: dict[str, float] = {}

    def look(self, _: TrainingProcess | None = None) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        self.note(dict(_free_gb(self._device)))

    def note(self, free_gb: Mapping[str, float]) -> None:
        """Of each GPU, or of the host."""
        for name, gb in free_gb.items():
            self.gb[name] = min(gb, self.gb.get(name, gb))

    def in_words(self) -> str:
        return ", ".join(f"{name} {gb:.1f} GB" for name, gb in sorted(self.gb.items())) or "not known"


def _free_gb(device: str) -> Iterator[tuple[str, float]]:
    if device == "cpu":
        yield HOST, psutil.virtual_memory().available / _GB
        return
    for line in _nvidia_smi("--query-gpu=index,memory.free", "nounits"):
        index, _, free_mib = line.partition(",")
        with suppress(ValueError):  # of MIG instances it says nothing
            yield f"GPU {index}", float(free_mib) * 2**20 / _GB


class Leftovers:
    """What was not there when this was made, and has no owner any more."""

    def __init__(self, device: str, *, mark: str, variable: str = MARK) -> None:
        """
        Args:
            mark: the value of a variable in the environment of what is started from now on.
            variable: its name.
        """
        self._device, self._mark, self._variable = device, mark, variable
        self._segments, self._on_gpu = set(_segments()), set(_on_gpus(device))

    def after_grace(self) -> list[str]:
        """What is there `now`, and still is when `GRACE_S` have gone."""
        ends_s = time.monotonic() + GRACE_S
        while (left := self.now()) and time.monotonic() < ends_s:
            time.sleep(0.2)
        return left

    def now(self) -> list[str]:
        """In words, one each: processes, what is on the GPUs, shared memory that no process has open."""
        found = [f"process {process.pid} ({_title(process)})" for process in self._marked()]
        on_gpu = sorted(set(_on_gpus(self._device)) - self._on_gpu)
        found += [f"on a GPU: {line}" for line in on_gpu if self._may_be_ours(line)]
        new = set(_segments()) - self._segments
        open_now = _open_segments() if new else set()
        # Some live for a moment, without ever being open under their name.
        return found + [str(path) for path in sorted(new - open_now) if path.exists()]

    def judge(self) -> Verdict:
        left = self.after_grace()
        remedy = "end these processes and remove these files; then read the log of the check that began them"
        return first_failure((not left, "; ".join(left), remedy), else_found="no process, no shared memory")

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            if process.pid != os.getpid() and _variable(process, self._variable) == self._mark:
                yield process

    def _may_be_ours(self, on_gpu: str) -> bool:
        """False if the process is marked as another one's; containers may not see it."""
        try:
            return _variable(psutil.Process(int(on_gpu.partition(",")[0])), self._variable) in ("", self._mark)
        except (ValueError, psutil.Error):
            return True


def _variable(process: psutil.Process, name: str) -> str:
    with suppress(psutil.Error):
        return process.environ().get(name, "")
    return ""


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())[:60]
    return "ended meanwhile"


def _on_gpus(device: str) -> list[str]:
    return _nvidia_smi("--query-compute-apps=pid,name") if device != "cpu" else []


def _nvidia_smi(query: str, *formats: str) -> list[str]:
    command = ["nvidia-smi", query, f"--format={','.join(('csv', 'noheader', *formats))}"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return said.strip().splitlines()


def _segments() -> Iterator[Path]:
    return _SHARED_MEMORY.iterdir() if _SHARED_MEMORY.is_dir() else iter(())


def _open_segments() -> set[Path]:
    """Those that a process has mapped or holds open."""
    held = (Path(path) for process in psutil.process_iter() for path in _held(process.pid))
    return {path for path in held if path.parent == _SHARED_MEMORY}


def _held(pid: int) -> Iterator[str]:
    """What a process holds may change, and the process end, while it is read."""
    with suppress(psutil.Error, OSError):
        yield from [mapped.path for mapped in psutil.Process(pid).memory_maps()]
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
