"""Stands in for Python where a process is started as a fork of the server: `python -I -S shim.py SOCKET ARGUMENT ...`.

Hands the server all that a process is given: arguments, environment, folder, descriptors, blocked and ignored signals.
Then it stays as the process that its parent knows. It passes signals on and ends as the fork does; when it is killed,
the server kills the fork. It imports little: there is one for each process.
"""

import array
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def main(address: str, arguments: list[str]) -> int:
    """Returns the exit code of the fork; negative, the signal that ended it."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    descriptors = list(_given(besides=server.fileno()))
    request = {
        "pid": os.getpid(),
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": descriptors,
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    message = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    server.sendmsg([struct.pack("!I", len(message))], [rights])
    server.sendall(message)
    [fork] = struct.unpack("!i", server.recv(4))
    for name in PASSED_ON:
        signal.signal(getattr(signal, name), lambda number, _: _pass_on(fork, number))
    for descriptor in descriptors:
        os.close(descriptor)  # an end of a pipe that others wait for
    answer = server.recv(4)
    return struct.unpack("!i", answer)[0] if answer else -signal.SIGKILL  # the server was killed, and its forks with it


def _given(*, besides: int) -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # what listed them
            if int(name) != besides and os.get_inheritable(int(name)):
                yield int(name)


def _pass_on(fork: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(fork, number)


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    if code < 0:
        with contextlib.suppress(OSError):  # nobody handles SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
