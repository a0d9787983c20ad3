"""Outlives a driver that starts Ray, and ends what Ray leaves: `python ray_guard.py MARK`.

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

DRIVER_VARIABLE = "ASYNC_DAPO_DRIVER"  # holds the mark; processes that the driver starts inherit it
GRACE_S = 3.0  # for connected workers to end as they do, with what they have started
_LOOK_S = 0.2
_OF_RAY = (b"ray::", b"/ray/_private/", b"/agent/main.py", b"/agent.py")  # one of these is in a process's title


def main(mark: str) -> None:
    sys.stdin.read()  # ends when the driver does
    deadline = time.monotonic() + GRACE_S
    while (left := list(_left_by_driver(mark))) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for process in left:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _left_by_driver(mark: str) -> Iterator[int]:
    variable = f"{DRIVER_VARIABLE}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        title = _read(folder / "cmdline")
        if any(part in title for part in _OF_RAY) and variable in _read(folder / "environ").split(b"\0"):
            yield int(folder.name)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return b""


if __name__ == "__main__":
    main(sys.argv[1])
