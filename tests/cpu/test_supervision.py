"""Whatever way a run ends, its processes and its shared memory end with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from recipe.async_dapo_lab.quickstart.supervision import TrainingProcess

HERE = Path(__file__).parent
# The shape of a Ray run: a driver, a daemon in its own session, and shared memory that nobody unlinks.
DRIVER = """
import os, sys, time
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + ".part", "w") as file:
            file.write(f"{os.getpid()} {segment.name}")
        os.rename(sys.argv[1] + ".part", sys.argv[1])
        time.sleep(600)
    os._exit(0)
"""
ENDS_AT_ONCE = DRIVER + "os._exit(3)"
GOES_ON = DRIVER + "time.sleep(600)"
# In a process of its own, because it adopts orphans from then on.
SUPERVISOR = """
import signal, sys
from pathlib import Path
from recipe.async_dapo_lab.quickstart.supervision import TrainingProcess
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
code, started = sys.argv[1:]
command = [sys.executable, "-c", code, started]
process = TrainingProcess(command, environment={}, log_file=Path(started + ".log"), grace_s=1.0)
with process:
    while process.exit_code is None or not Path(started).exists():
        process.watch(0.05)
    process.watch(0.05)
print(process.exit_code, process.peak_memory_bytes > 0)
"""


def start_supervisor(code: str, started: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, code, str(started)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
    )


def wait_for_file(path: Path) -> str:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def daemon_and_segment(started: Path) -> tuple[int, Path]:
    pid, segment = wait_for_file(started).split()
    return int(pid), Path("/dev/shm", segment)


@pytest.mark.parametrize("how", ["driver ends", "supervisor is terminated"])
def test_given_a_daemon_and_a_segment_when_the_run_ends_then_both_are_gone(tmp_path, how):
    started = tmp_path / "started"
    supervisor = start_supervisor(ENDS_AT_ONCE if how == "driver ends" else GOES_ON, started)
    daemon, segment = daemon_and_segment(started)
    if how == "driver ends":
        output, _ = supervisor.communicate(timeout=300)
        assert output.split() == ["3", "True"]
    else:
        supervisor.send_signal(signal.SIGTERM)
        supervisor.communicate(timeout=300)
        assert supervisor.returncode == 7
    assert not psutil.pid_exists(daemon)
    assert not segment.exists()


def test_given_a_segment_of_another_run_when_a_run_ends_then_it_stays(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", GOES_ON, str(tmp_path / "other")])
    try:
        daemon, segment = daemon_and_segment(tmp_path / "other")
        supervisor = start_supervisor(ENDS_AT_ONCE, tmp_path / "started")
        supervisor.communicate(timeout=300)
        assert segment.exists() and psutil.pid_exists(daemon)
        os.kill(daemon, signal.SIGKILL)
        segment.unlink()
    finally:
        other.kill()
        other.wait()


# A benchmark's training, which says that it has begun, and goes on.
ENDLESS = """
import os, sys, time
with open(sys.argv[-1] + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[-1] + ".part", sys.argv[-1])
time.sleep(600)
"""
BENCHMARK = """
import sys
from pathlib import Path
from benchmarks.support.supervised_training import train
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
folder = Path(sys.argv[1])
train(["endless", str(folder / "started")], Assets(folder=folder), folder, steps=1, seed=0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_given_a_benchmark_when_it_is_terminated_then_its_training_ends_with_it(tmp_path, number):
    (tmp_path / "endless.py").write_text(ENDLESS)
    benchmark = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, str(tmp_path)],
        cwd=HERE.parents[1],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    training = int(wait_for_file(tmp_path / "started"))
    benchmark.send_signal(number)
    assert benchmark.wait(timeout=300) == 128 + number
    assert not psutil.pid_exists(training)


def test_given_a_signal_while_the_process_starts_then_it_is_not_left_behind(tmp_path, monkeypatch) -> None:
    started = []

    def interrupted(command, **options):
        started.append(popen(command, **options))
        raise SystemExit(128 + signal.SIGTERM)  # as the handler does, before `with` has begun

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(SystemExit), TrainingProcess(["sleep", "600"], environment={}, log_file=tmp_path / "log"):
        pass
    assert not psutil.pid_exists(started[0].pid)
    started[0].wait()  # Popen has not seen its end


# Is told to end once more while it ends what it has started.
TOLD_TWICE = """
import os, signal
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals
exit_on_signals()
try:
    os.kill(os.getpid(), signal.SIGTERM)
finally:
    os.kill(os.getpid(), signal.SIGHUP)
    print("ended")
"""


def test_given_a_second_signal_while_a_run_is_ended_then_it_is_ended_all_the_same():
    done = subprocess.run(
        [sys.executable, "-c", TOLD_TWICE], cwd=HERE.parents[1], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "ended\n")
