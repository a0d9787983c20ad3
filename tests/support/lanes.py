"""Runs tests in several lanes: forks of the process that has collected them, so that all they import is imported once.

A lane has a file at a time. Fixtures of the session are made in each; a test that ends its lane fails, and a new lane
goes on with its file.
"""

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

ONE_RAY = "tests/ray/"  # its tests share a cluster, which takes seconds to start
END_S = 600.0  # longest time for fixtures behind the last test: then a lane shows where it hangs, and ends
NextFile = Callable[[Sequence[str], Sequence[str]], str | None]
_PR_SET_PDEATHSIG = 1


def run_in_lanes(session: pytest.Session, count: int, next_file: NextFile) -> None:
    """All tests of the session.

    Args:
        next_file: of those that wait, in order, the one to run beside those that run; None where each must wait for
            one of these to end.
    """
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # lanes share it
    session.config.pluginmanager.get_plugin("terminalreporter").showfspath = False  # files are shown in turns
    waiting: dict[str, list[int]] = {}
    for number, item in enumerate(session.items):
        waiting.setdefault(taken_as_one(item.nodeid), []).append(number)
    lanes: list[_Lane] = []
    try:
        while len(lanes) < min(count, len(session.items)):
            lanes.append(_Lane(session, lanes))
        while _give(lanes, waiting, next_file):
            busy = {id(lane.connection): lane for lane in lanes if lane.file}
            for connection in wait([lane.connection for lane in busy.values()]):
                lane = busy[id(connection)]
                if not (is_alive := lane.hear()):
                    lanes.remove(lane)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
                if not is_alive:
                    lanes.append(_Lane(session, lanes))
                    lanes[-1].give(lane.file, lane.left)
    finally:
        for lane in lanes:
            lane.connection.close()  # all of them end behind the test that each is at
        codes = [lane.end() for lane in lanes]
    if any(codes):
        session.shouldfail = f"exit codes of lanes: {codes}; a fixture of the session has not ended"  # pytest shows it
        raise session.Failed(session.shouldfail)


def taken_as_one(nodeid: str) -> str:
    """What no two lanes have a part of."""
    return ONE_RAY if nodeid.startswith(ONE_RAY) else nodeid.partition("::")[0]


def _give(lanes: Sequence["_Lane"], waiting: dict[str, list[int]], next_file: NextFile) -> bool:
    """Whether a lane has something to do."""
    for lane in lanes:
        if not lane.file and (file := next_file([*waiting], [one.file for one in lanes if one.file])):
            lane.give(file, waiting.pop(file))
    return any(lane.file for lane in lanes)


class _Lane:
    """One fork, seen from the process that made it.

    Attributes:
        file: that it runs, "" if it waits for one.
        left: numbers of the file's tests that have not ended, in order.
    """

    def __init__(self, session: pytest.Session, others: Sequence["_Lane"]) -> None:
        self._session = session
        self.file, self.left = "", list[int]()
        self.connection, theirs = Pipe()
        session.config.get_terminal_writer().flush()
        parent = os.getpid()
        self._process = os.fork()
        if self._process == 0:
            for lane in (*others, self):
                lane.connection.close()
            _run_as_lane(session, theirs, parent)
        theirs.close()

    def give(self, file: str, tests: Sequence[int]) -> None:
        if tests:
            self.file, self.left = file, list(tests)
            with suppress(OSError):  # it has ended, as `hear` says
                self.connection.send(self.left)

    def hear(self) -> bool:
        """Tell pytest how the next test has ended. False: with its lane."""
        item = self._session.items[self.left.pop(0)]
        hook, config = self._session.config.hook, self._session.config
        try:
            said, is_alive = self.connection.recv(), True
        except (EOFError, OSError):
            reason = f"the lane ended in this test, with exit code {self.end()}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
            said, is_alive = [hook.pytest_report_to_serializable(config=config, report=report)], False
        for data in said:
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=data))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if is_alive and not self.left:
            self.file = ""
        return is_alive

    def end(self) -> int:
        """Its exit code, when its test and what its fixtures have started are at an end."""
        self.connection.close()
        _, status = os.waitpid(self._process, 0)
        return os.waitstatus_to_exitcode(status)


class _Reports:
    """Keeps a test's reports, in place of showing them."""

    def __init__(self) -> None:
        self.last: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self.last = runtestprotocol(item, log=False, nextitem=nextitem)
        return True


def _run_as_lane(session: pytest.Session, parent: Connection, parent_id: int) -> NoReturn:
    code = 1
    try:
        os.register_at_fork(after_in_child=parent.close)  # else what a test forks would hide that its lane has ended
        # As at Ctrl-C, what tests have started ends if the first process is killed. A shell's background ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() == parent_id:
            _run_tests(session, parent)
        code = 0
    except KeyboardInterrupt:
        pass  # which the first process tells
    except BaseException:
        sys.excepthook(*sys.exc_info())
    try:
        faulthandler.dump_traceback_later(END_S, exit=True)
        session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        os._exit(code)


def _run_tests(session: pytest.Session, parent: Connection) -> None:
    """Until the parent has nothing more to give, or gives up."""
    config, reports = session.config, _Reports()
    config.pluginmanager.register(reports)
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()  # into a file that other lanes do not have
    capture.suspend_global_capture()
    with suppress(EOFError, OSError):
        while tests := parent.recv():
            for number, following in zip(tests, [*tests[1:], None], strict=True):
                item = session.items[number]
                # Behind the last one fixtures of the session stay, and no others.
                nextitem: Any = session if following is None else session.items[following]
                config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                said = [config.hook.pytest_report_to_serializable(config=config, report=one) for one in reports.last]
                parent.send(said)
                if following is not None and parent.poll():  # closed: files come one at a time
                    return
