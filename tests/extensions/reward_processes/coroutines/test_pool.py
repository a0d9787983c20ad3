"""The processes of a reward worker, and its threads: who waits for whom, and who is to blame."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import psutil
import pytest
from ray.exceptions import RayTaskError

from recipe.async_dapo.core.users_errors import Cause, NotLoaded, RaisedElsewhere
from recipe.async_dapo.extensions.reward_processes import pool
from recipe.async_dapo.extensions.reward_processes.pool import (
    RewardFunction,
    RewardProcess,
    RewardProcessDied,
    RewardProcesses,
    RewardProcessKilled,
)
from recipe.async_dapo.rollout.reward import cause_of

FUNCTION = RewardFunction(path="reward.py", name="compute_score", timeout_s=60.0)
TIMEOUT_S = 4.0  # of a call of a real process
PATIENCE_S = 300.0  # what has not ended by then hangs


class ScriptedProcess:
    """A reward process. A call does what its argument `does`; where that raises, the process has ended."""

    def __init__(self) -> None:
        self.has_ended = Event()
        self._is_busy = False

    def is_alive(self) -> bool:
        return not self.has_ended.is_set()

    def ask(self, arguments: dict[str, Any]) -> Any:
        assert self.is_alive() and not self._is_busy
        self._is_busy = True
        try:
            return arguments["does"](self)
        except Exception:
            self.end()
            raise
        finally:
            self._is_busy = False

    def end(self) -> None:
        self.has_ended.set()


class Processes(RewardProcesses):
    """With scripted ones; those that were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, limit: int) -> None:
        super().__init__(FUNCTION, limit=limit)
        self.started: list[ScriptedProcess] = []
        monkeypatch.setattr(pool, "RewardProcess", self._begin)

    def _begin(self, function: RewardFunction) -> ScriptedProcess:
        assert function is FUNCTION
        self.started.append(ScriptedProcess())
        return self.started[-1]

    @property
    def alive(self) -> int:
        return sum(process.is_alive() for process in self.started)

    def call(self, does: Any = lambda _: "score") -> Future[Any]:
        return self.submit({"does": does})


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    processes = Processes(monkeypatch, limit=2)
    yield processes
    processes.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits for long before it may start a process."""
    monkeypatch.setattr(pool, "SLOW_S", 0.01)


def times_out(process: ScriptedProcess) -> Any:
    raise RewardProcessKilled("no answer")


@pytest.mark.parametrize("hanging", [1, 2, 5])
def test_given_calls_that_time_out_then_they_alone_fail_and_their_processes_are_replaced(
    two: Processes, hanging: int
) -> None:
    lost, scored = [two.call(times_out) for _ in range(hanging)], [two.call() for _ in range(20)]
    assert [type(call.exception(PATIENCE_S)) for call in lost] == [RewardProcessKilled] * hanging
    assert [call.result(PATIENCE_S) for call in scored] == ["score"] * 20
    assert len(two.started) >= 1 + hanging and two.alive <= 2


@pytest.mark.usefixtures("quick")
def test_given_one_call_that_never_returns_then_the_others_have_a_second_process(two: Processes) -> None:
    stuck = two.call(lambda process: process.has_ended.wait())
    assert [two.call().result(PATIENCE_S) for _ in range(10)] == ["score"] * 10
    assert not stuck.done() and len(two.started) == 2


def test_given_quick_calls_then_one_process_does_all_of_them(two: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SLOW_S", PATIENCE_S)
    calls = [two.call() for _ in range(50)]
    assert [call.result(PATIENCE_S) for call in calls] == ["score"] * 50
    assert len(two.started) == 1


@pytest.mark.usefixtures("quick")
def test_given_slow_calls_then_as_many_processes_as_allowed_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    processes, at_once = Processes(monkeypatch, limit=3), Barrier(3)
    calls = [processes.call(lambda _: at_once.wait(PATIENCE_S)) for _ in range(12)]
    assert sorted(call.result(PATIENCE_S) for call in calls) == [0] * 4 + [1] * 4 + [2] * 4
    assert len(processes.started) == 3
    processes.close()


def test_given_a_process_that_ends_between_calls_then_the_next_call_has_another(two: Processes) -> None:
    for _ in range(3):
        assert two.call().result(PATIENCE_S) == "score"
        two.started[-1].end()
    assert len(two.started) == 3


def test_given_a_process_that_cannot_start_then_each_call_has_the_error_and_none_waits_for_ever() -> None:
    processes = RewardProcesses(FUNCTION, limit=2)
    calls = [processes.submit({}) for _ in range(5)]
    assert [type(call.exception(PATIENCE_S)) for call in calls] == [NotLoaded] * 5


def test_given_a_call_that_runs_when_the_processes_are_closed_then_it_ends_and_the_others_never_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes, began = Processes(monkeypatch, limit=1), Event()

    def waits(process: ScriptedProcess) -> None:
        began.set()
        process.has_ended.wait()
        raise RewardProcessDied

    running, waiting = processes.call(waits), processes.call()
    assert began.wait(PATIENCE_S)
    processes.close()
    assert isinstance(running.exception(PATIENCE_S), RewardProcessDied) and waiting.cancelled()


STARTS_ANOTHER = """
import ctypes, os, subprocess
from pathlib import Path

def compute_score(place, then):
    Path(place).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
    if then == "hangs":
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter
    os._exit(3)
"""


@pytest.mark.parametrize(
    ("then", "error", "text"),
    [
        pytest.param(
            *("hangs", RewardProcessKilled, f"no answer within {TIMEOUT_S} s; its process has been killed"),
            marks=pytest.mark.slow,
        ),
        ("exits", RewardProcessDied, "its process has ended (exit code 3)"),
    ],
)
def test_given_a_function_that_started_a_process_when_it_hangs_or_exits_then_that_ends_with_it(
    tmp_path: Path, then: str, error: type[Exception], text: str
) -> None:
    (tmp_path / "reward.py").write_text(STARTS_ANOTHER)
    function = RewardFunction(path=str(tmp_path / "reward.py"), name="compute_score", timeout_s=TIMEOUT_S)
    process = RewardProcess(function)
    with pytest.raises(error) as raised:
        process.ask({"place": str(tmp_path / "pid"), "then": then})
    assert str(raised.value) == text and not process.is_alive()
    deadline = time.monotonic() + PATIENCE_S
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(int((tmp_path / "pid").read_text()))
        while started.status() != psutil.STATUS_ZOMBIE:  # the kernel takes it down
            assert time.monotonic() < deadline, "it has outlived the call"
            time.sleep(0.01)


# What acts behind the answer of its call waits until that is known to have come.
LEAVES_SOMETHING = """
import ctypes, os, threading, time

def later(place, act, argument):
    while not os.path.exists(place):
        time.sleep(0.01)
    act(argument)

def compute_score(then, place, text=""):
    if then == "a thread that holds the interpreter":
        says_so = f"touch '{place} and more'; exec sleep 1000".encode()
        threading.Thread(target=later, args=(place, ctypes.PyDLL(None).system, says_so)).start()
    elif then == "a child, and exits" and not os.fork():
        ctypes.CDLL(None).sleep(1000)
    elif then == "a child, and exits":
        threading.Thread(target=later, args=(place, os._exit, 0)).start()
    return 1.0
"""


@pytest.mark.parametrize(
    "what", [pytest.param("a thread that holds the interpreter", marks=pytest.mark.slow), "a child, and exits"]
)
def test_given_a_call_that_leaves_something_behind_then_the_next_one_does_not_hang(tmp_path: Path, what: str) -> None:
    """Its arguments are more than the connection holds, and nobody reads them."""
    (tmp_path / "reward.py").write_text(LEAVES_SOMETHING)
    function = RewardFunction(path=str(tmp_path / "reward.py"), name="compute_score", timeout_s=TIMEOUT_S)
    process, place = RewardProcess(function), tmp_path / "has its answer"
    assert process.ask({"then": what, "place": str(place)}) == 1.0
    place.touch()
    if what == "a child, and exits":
        deadline = time.monotonic() + PATIENCE_S
        while process.is_alive():
            assert time.monotonic() < deadline, "the child has the connection, and the process counts as alive"
            time.sleep(0.01)
        return
    deadline = time.monotonic() + PATIENCE_S
    while not Path(f"{place} and more").exists():  # the thread holds the interpreter, for good
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(RewardProcessKilled, match="no answer within"):
        process.ask({"then": "", "place": "", "text": "x" * 10**7})


RAISES = """
import json

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return look_up(solution_str)

def look_up(text):
    return json.loads(text)["acc"]
"""


def test_a_reward_functions_error_names_its_own_line_and_not_the_librarys(tmp_path: Path) -> None:
    file = tmp_path / "reward_0123abcd.py"  # as it is shipped
    file.write_text(RAISES)
    function = RewardFunction(path=str(file), name="compute_score", timeout_s=30.0)
    answers = {"data_source": "", "ground_truth": ""}

    def raised(text: str) -> RaisedElsewhere:
        process = RewardProcess(function)
        try:
            with pytest.raises(RaisedElsewhere) as error:
                process.ask(answers | {"solution_str": text})
        finally:
            process.end()
        return error.value

    missing, broken = raised("{}"), raised("{")
    assert str(missing) == "KeyError('acc') at reward.py:8"
    assert str(broken).startswith("JSONDecodeError") and str(broken).endswith("at reward.py:8")
    first_frame = missing.traceback.splitlines()[1]
    assert "in compute_score" in first_frame and str(file) in first_frame
    remote = RayTaskError("compute_score", "Traceback ...", missing).as_instanceof_cause()
    assert cause_of(remote) == Cause(str(missing), missing.traceback)
