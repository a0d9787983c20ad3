"""Outlives a driver that has started Ray, and ends what Ray leaves: `python ray_guard.py RAYLET_PID AGENT_PID...`.

Ray ends the raylet with its driver, and a worker when its raylet has gone, but two kinds notice too late. Agents try
for a minute to tell the GCS, which has gone as well, that the raylet has. A worker looks at its raylet once it is
connected; until then it tries for 30 s to 60 s to reach the GCS. This runs as long as the driver: it imports little.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 3.0  # for connected workers to end as they do, with what they have started
_LOOK_S = 0.2
_WORKERS = (b"ray::", b"/ray/_private/workers/")  # one of these is in a worker's title


def main() -> None:
    raylet, *agents = sys.argv[1:]
    sys.stdin.read()  # ends when the driver does
    for agent in agents:
        if b"agent" in _read(Path("/proc", agent, "cmdline")).lower():  # the id may be another process's by now
            _kill(int(agent))
    deadline = time.monotonic() + GRACE_S
    while (left := list(_workers_of(raylet))) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for worker in left:
        _kill(worker)


def _workers_of(raylet: str) -> Iterator[int]:
    """A raylet tells its workers its process id, which they pass on to what they start."""
    mark = f"RAY_RAYLET_PID={raylet}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        title = _read(folder / "cmdline")
        if any(part in title for part in _WORKERS) and mark in _read(folder / "environ").split(b"\0"):
            yield int(folder.name)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
