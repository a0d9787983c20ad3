"""Imports once what every process of a training imports, and makes each of these processes by a fork.

`python -m recipe.async_dapo_lab.quickstart.forks.server FOLDER OWNER MODULE ...`, by `fork_server.start`. It prints its
process id when it listens on FOLDER/socket. It ends with the process OWNER, or at SIGTERM: then it kills all that its
forks have left, removes their shared memory, and the folder.
"""

import array
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import site
import socket
import struct
import sys
import tempfile
import types
import warnings
from contextlib import suppress
from itertools import accumulate
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NoReturn

import psutil

from ..supervision import open_segments

# Ray reads its environment once, when it is loaded, and so its own process must load it; the others import it.
KEPT_OUT = ("ray", "verl", "transfer_queue")
OWN = __package__.partition(".")[0]  # a fork finds it by its own path, which may have another one of this name
FORKED_FOR = "FORKED_FOR"  # what a fork shows in its environment: the process that stands in for it
SOCKET, EXECUTABLE = "socket", "python"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MOST_DESCRIPTORS = 253  # in one message
_ENV_START, _ENV_END = 47, 48  # where the kernel finds the environment: fields of /proc/PID/stat behind the title
_SHOWN: list[Any] = []  # C reads it as long as the process runs


class Server:
    """Sockets of the forks' stand-ins, and the forks."""

    def __init__(self, folder: Path, owner: int) -> None:
        """
        Args:
            owner: descriptor of the process.
        """
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / SOCKET))
        self._socket.listen(64)
        self._forks: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._owner = owner
        self._signals, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for source in (self._socket, self._owner, self._signals):
            self._selector.register(source, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wakes)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def serve(self) -> dict[str, Any]:
        """Returns in forks only, with what each is to be."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._socket:
                    connection, _ = self._socket.accept()
                    if (request := self._answer(connection)) is not None:
                        return request
                elif key.fileobj == self._owner:
                    self._end()
                elif key.fileobj == self._signals:
                    if signal.SIGTERM in os.read(self._signals, 4096):
                        self._end()
                    self._take_ended()
                else:
                    self._forget(key.fileobj, kill=True)  # the stand-in has been killed

    def _answer(self, connection: socket.socket) -> dict[str, Any] | None:
        try:
            request, given = _received(connection)
        except (OSError, ValueError, struct.error):  # killed while it asked
            connection.close()
            return None
        parent = os.getpid()
        # A signal that reaches a fork before it has handlers of its own would end the server, or be lost: it waits.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if (fork := os.fork()) == 0:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.setsid()  # who ends a process by its group ends no other fork
            self._close()
            connection.close()
            _move(given, request["descriptors"])
            return request
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in given:
            os.close(descriptor)
        self._forks[connection] = fork
        self._selector.register(connection, selectors.EVENT_READ)
        with suppress(OSError):
            connection.sendall(struct.pack("!i", fork))
        return None

    def _take_ended(self) -> None:
        """Of forks, whose exit codes go to their stand-ins, and of orphans that forks have left."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                for connection in [one for one, fork in self._forks.items() if fork == ended[0]]:
                    with suppress(OSError):
                        connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(ended[1])))
                    self._forget(connection, kill=False)

    def _forget(self, connection: Any, *, kill: bool) -> None:
        if (fork := self._forks.pop(connection, None)) is None:
            return  # it has ended meanwhile
        if kill:
            os.kill(fork, signal.SIGKILL)  # not reaped yet
        self._selector.unregister(connection)
        connection.close()

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for connection in (self._socket, *self._forks):
            connection.close()
        for descriptor in (self._owner, self._signals, self._wakes):
            os.close(descriptor)

    def _end(self) -> NoReturn:
        """Orphans are adopted, so that all that is left comes to be a child of this process."""
        segments = {segment for one in psutil.Process().children(recursive=True) for segment in open_segments(one.pid)}
        with suppress(ChildProcessError):
            while True:
                for child in psutil.Process().children():
                    child.kill()
                os.waitpid(-1, 0)
        for segment in segments:
            segment.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the descriptors that came with it, which are closed if it does not come whole."""
    head, rights, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize))
    given = array.array("i")
    for _, _, data in rights:
        given.frombytes(data)
    try:
        [length] = struct.unpack("!I", head)
        with connection.makefile("rb") as stream:
            return json.loads(stream.read(length)), list(given)
    except (OSError, ValueError, struct.error):
        for descriptor in given:
            os.close(descriptor)
        raise


def _move(given: list[int], places: list[int]) -> None:
    """Give descriptors the numbers that they had in the stand-in; close all others."""
    above = max([*given, *places, 2]) + 1
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in given]
    start = 3
    for descriptor in [*sorted(high), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(start, descriptor)
        start = descriptor + 1
    for descriptor, place in zip(high, places, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)


def become(request: dict[str, Any], path: list[str], of_imports: dict[str, str]) -> None:
    """Do what a Python does that is started with these arguments.

    Args:
        path: of the installed packages.
        of_imports: variables that imports have set in the server, as they would have in this process.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.chdir(request["folder"])
    environment = of_imports | request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    _show(environment, beside=f"{FORKED_FOR}={request['pid']}")
    _know_anew(environment)
    found = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = ["", *found, *path]
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()
    sys.orig_argv = [sys.executable, *request["arguments"]]
    kind, name, arguments = _without_flags(request["arguments"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-m":
        sys.argv = [name, *arguments]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return
    sys.argv = ["-c" if kind == "-c" else name, *arguments]
    if kind == "":
        sys.path[0] = str(Path(name).resolve().parent)
        main.__dict__["__file__"] = name
    code = name if kind == "-c" else Path(name).read_bytes()
    exec(compile(code, "<string>" if kind == "-c" else name, "exec"), main.__dict__)


def _without_flags(arguments: list[str]) -> tuple[str, str, list[str]]:
    """Whether it is a module, a program or a file; which one; and its own arguments."""
    while arguments[0].startswith("-"):
        if arguments[0] in ("-m", "-c"):
            return arguments[0], arguments[1], arguments[2:]
        arguments = arguments[2 if arguments[0] in ("-X", "-W") else 1 :]
    return "", arguments[0], arguments[1:]


def _show(environment: dict[str, str], *, beside: str) -> None:
    """Write the environment where others read it in /proc/PID/environ: over the one that this process was started
    with, which has room. C's `environ` points there, too, as libraries that set a process's title look for the
    arguments in front of it.

    Args:
        beside: is shown as well, and processes that this one starts do not inherit it.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[index]) for index in (_ENV_START, _ENV_END))
    entries = [f"{name}={value}\0".encode() for name, value in environment.items()]
    shown = b"".join([*entries, beside.encode()])
    assert len(shown) < end - start, "this environment needs more room than the server was started with"
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)
    places = list(accumulate(map(len, entries), initial=start))[:-1]
    _SHOWN.append((ctypes.c_void_p * (len(entries) + 1))(*places, None))
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value = ctypes.addressof(_SHOWN[0])


def _know_anew(environment: dict[str, str]) -> None:
    """Set again what libraries have set at their import and each process has for itself."""
    tempfile.tempdir = None
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


class _KeptOut:
    """Finds none of the modules `KEPT_OUT`."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in KEPT_OUT:
            raise ModuleNotFoundError(f"{name} is left to forks", name=name)


def import_all(modules: list[str]) -> None:
    without = _KeptOut()
    sys.meta_path.insert(0, without)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(module)
    sys.meta_path.remove(without)
    for name in [name for name in sys.modules if name.partition(".")[0] == OWN]:
        del sys.modules[name]


def main(folder: Path, owner: int, modules: list[str]) -> None:
    owner_ends = os.pidfd_open(owner)
    before, path = dict(os.environ), sys.path[1:]
    own, python = os.environ["PYTHONPATH"].split(os.pathsep), sys.executable
    spawn.set_executable(str(folder / EXECUTABLE))
    sys.executable = str(folder / EXECUTABLE)  # vLLM keeps it for processes of its own, such as that of its registry
    import_all(modules)
    sys.executable = python
    of_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    server = Server(folder, owner_ends)
    if process := os.fork():
        sys.stdout.write(f"{process}\n")
        sys.stdout.flush()
        os._exit(0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # `ready` reads the pipe until all have closed it
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()  # forks share its pages
    become(server.serve(), [place for place in path if place not in own], of_imports)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
