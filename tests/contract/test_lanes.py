"""How this project's tests are shared out among the processes that run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from ..conftest import TESTS, TOOLS, next_file
from ..support.lanes import taken_as_one

IN_LANES = """
from pathlib import Path
import pytest
from tests.support.lanes import run_in_lanes

def pytest_runtestloop(session):
    run_in_lanes(session, 2, lambda waiting, running: next(iter(waiting), None))
    return True

@pytest.fixture(scope="session")
def lane():
    yield
    with Path("ended").open("a") as file:
        file.write("x")
    raise OSError("it has not ended")
"""
KILLED = """
import os, signal, time
from pathlib import Path

def test_before(lane): pass
def test_that_fails():
    print("what it has said")
    assert 1 == 2
def test_that_kills():
    if os.fork() == 0:  # a process with all that its lane has open, which ends last
        signal.alarm(200)
        while not Path("ended").exists():
            time.sleep(0.01)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
def test_behind(lane): pass
"""


HANGS = """
import threading
import pytest
from tests.support import lanes

lanes.END_S = 0.5

@pytest.fixture(scope="session")
def never_ends():
    yield
    threading.Event().wait()

def test_before(never_ends): pass
"""
KILLED_FIRST = """
import os, signal
from pathlib import Path

def test_that_kills():
    os.kill(os.getpid(), signal.SIGKILL)
def test_behind():
    Path("went_on").touch()
"""


def run_in(folder: Path, files: dict[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
    for name, text in ({"conftest.py": IN_LANES} | files).items():
        (folder / name).write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_a_lane_works_on_whatever_others_train() -> None:
    waiting = ("tests/e2e/test_lora.py", "tests/contract/test_options.py")
    trained = ("tests/e2e/test_separate.py", "tests/e2e/test_quickstart.py")
    assert next_file(waiting, trained) == "tests/contract/test_options.py"
    assert next_file(waiting, trained[:1]) == "tests/e2e/test_lora.py"
    assert next_file(waiting[:1], trained) is None
    on_ray = ("tests/ray/", "tests/extensions/signals/ray/test_signals.py")
    assert next_file((on_ray[1], *waiting), on_ray[:1]) == "tests/e2e/test_lora.py"
    assert next_file(on_ray[1:], on_ray[:1]) is None


def test_files_that_share_a_cluster_go_to_one_lane() -> None:
    tests = ("tests/ray/test_deaths.py::a", "tests/ray/test_rewards.py::b", "tests/core/test_pool.py::c[tests/ray/]")
    assert [taken_as_one(test) for test in tests] == ["tests/ray/", "tests/ray/", "tests/core/test_pool.py"]


def test_each_test_ends_once_whatever_ends_its_lane(tmp_path: Path) -> None:
    done = run_in(tmp_path, {"test_killed.py": KILLED, "test_other.py": "def test_other(lane): pass\n"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 3 passed" in done.stdout
    assert re.search(r"Captured stdout call -*\nwhat it has said", done.stdout)
    assert "the lane ended in this test, with exit code -9" in done.stdout
    assert (tmp_path / "ended").read_text() == "xx"  # the two that were not killed
    assert "exit codes of lanes: [1, 1]; a fixture of the session has not ended" in done.stdout


def test_a_fixture_that_never_ends_is_shown_and_ends_with_its_lane(tmp_path: Path) -> None:
    done = run_in(tmp_path, {"test_hangs.py": HANGS})
    assert done.returncode == 1 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert "exit codes of lanes: [1]" in done.stdout and "in never_ends" in done.stderr


def test_a_run_that_ends_at_its_first_failure_goes_on_in_no_other_lane(tmp_path: Path) -> None:
    done = run_in(tmp_path, {"test_killed.py": KILLED_FIRST}, "-x")
    assert done.returncode == 1 and "1 failed in" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "went_on").exists()


def test_of_each_file_of_a_tool_there_is_the_test_that_every_run_plays() -> None:
    """Under another name the whole file would be left out in silence."""
    assert [file for file, test in TOOLS.items() if f"def {test}(" not in (TESTS / file).read_text()] == []
