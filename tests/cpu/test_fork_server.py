"""A fork of the server acts as a process that was started, and none outlives the server's owner."""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from recipe.async_dapo_lab import ray_guard
from recipe.async_dapo_lab.quickstart.activation import cpu_environment
from recipe.async_dapo_lab.quickstart.fork_server import ForkedTraining, ForkServer, children
from recipe.async_dapo_lab.quickstart.forks.server import KEPT_OUT, OWN, SOCKET

from ..support import fork_server

LIMIT_S = 300.0
MOST_IMPORTED = 200  # modules of other packages, of 7,000
SAYS = """
import json, os, sys
print(json.dumps([sys.argv[1:], sys.orig_argv[-2:], os.getcwd(), os.environ["MINE"], sys.path[1], sys.stdin.read()]))
print("an error", file=sys.stderr)
sys.exit(7)
"""
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
HANDLES = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); {WAITS}"
NAMED = f"import setproctitle; setproctitle.setproctitle('ray::Worker'); {WAITS}"
SPAWNS = """
import multiprocessing, os, sys, time

def main(pipe):
    pipe.send((os.getpid(), "setproctitle" in sys.modules))
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=main, args=(theirs,), daemon=True)
    child.start()
    print(child.pid, *ours.recv(), os.getpid(), flush=True)
    child.join()
    print(child.exitcode, flush=True)
"""
# A stand-in that passes SIGTERM on as soon as it can.
AT_ONCE = """
import os, signal, sys
from recipe.async_dapo_lab.quickstart.forks import shim

def handle(number, handler, handle=signal.signal):
    handle(number, handler)
    if number == signal.SIGTERM:
        signal.raise_signal(number)

signal.signal = handle
os._exit(-shim.main(sys.argv[1], ["-c", "import time; time.sleep(600)"]))
"""
# What Ray's workers are started with, without anything of the user's, with packages, and with another Python.
HOOKED = """
import importlib, json, os
module, _, name = os.environ["RAY_RUNTIME_ENV_HOOK"].rpartition(".")
hook = getattr(importlib.import_module(module), name)
print(json.dumps([hook(None), hook({"pip": ["a"]}), hook({"py_executable": "mine"})]))
"""
# What driver, workers and engines of a training import; how many functions of it torch would compile when they are
# called; and whether the process in which vLLM looks at a model is a fork.
IMPORTS = """
import json, sys, tempfile, types
before = set(sys.modules)
import recipe.async_dapo.training.run, recipe.async_dapo.engines.server_actor, recipe.async_dapo.rollout.worker
import verl.workers.engine_workers, verl.experimental.reward_loop, vllm.v1.engine.core
imported = sorted(set(sys.modules) - before)
values = [value for module in list(sys.modules.values()) for value in list(vars(module).values())]
marks = [vars(value) for value in values if isinstance(value, types.FunctionType)]
compiled = sum("_torchdynamo_orig_callable" in mark and "_torchdynamo_disable" not in mark for mark in marks)
from vllm.model_executor.models.registry import _run_in_subprocess
looks = _run_in_subprocess(lambda: "FORKED_FOR=" in open("/proc/self/environ").read())
print(json.dumps([tempfile.gettempdir(), imported, compiled, looks]))
"""


class Small:
    """A server that has imported next to nothing, and so costs little. It ends with `owner`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.owner = self._until_the_end(subprocess.Popen(["sleep", "600"]))
        os.environ[fork_server.OWNER] = str(self.owner.pid)
        self.python = fork_server.executable(["setproctitle"])

    def start(self, program: str | Path, **options) -> subprocess.Popen[str]:
        command = [self.python, program] if isinstance(program, Path) else [self.python, "-c", program]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
        return self._until_the_end(subprocess.Popen(command, text=True, **pipes, **options))

    def _until_the_end(self, process: subprocess.Popen) -> subprocess.Popen:
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def small(monkeypatch) -> Iterator[Small]:
    monkeypatch.setenv(fork_server.OWNER, "")
    with ExitStack() as stack:
        yield Small(stack)


def fork_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Of a program that says its id first."""
    return psutil.Process(int(process.stdout.readline()))


def assert_ends(*processes: psutil.Process) -> None:
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)
    assert not alive


@pytest.mark.parametrize("how", ["program", "module", "file"])
def test_given_a_fork_then_it_has_what_it_was_started_with_and_its_exit_code_is_known(small, tmp_path, how):
    (tmp_path / "says.py").write_text(SAYS)
    what = {"program": ["-c", SAYS], "module": ["-m", "says"], "file": [str(tmp_path / "says.py")]}[how]
    done = subprocess.run(
        [small.python, "-u", "-X", "dev", *what, "a", "b c"],
        input="some input",
        env={"MINE": "mine", "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    words, folder = ["a", "b c"], str(tmp_path)
    assert json.loads(done.stdout) == [words, words, folder, "mine", folder, "some input"]
    assert (done.stderr, done.returncode) == ("an error\n", 7)


def test_given_an_exception_when_it_ends_a_fork_then_it_is_told_as_python_tells_it(small):
    process = small.start("raise KeyError('a cause')")
    assert process.communicate(timeout=LIMIT_S)[1].endswith("KeyError: 'a cause'\n")
    assert process.returncode == 1


def test_given_a_signal_when_its_stand_in_gets_it_then_the_fork_handles_it(small):
    process = small.start(HANDLES)
    fork = fork_of(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 9
    assert_ends(fork)


def test_given_a_signal_to_a_fork_that_has_hardly_begun_then_it_ends_that_fork_and_not_the_server(small):
    address = str(Path(small.python).with_name(SOCKET))
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", AT_ONCE, address], cwd=fork_server.ROOT, timeout=LIMIT_S)
        assert done.returncode == signal.SIGTERM
    assert small.start("").wait(LIMIT_S) == 0, "the server is gone"


def test_given_a_stand_in_that_is_killed_while_it_asks_then_the_server_keeps_nothing_open(small):
    reads, writes = os.pipe()
    with socket.socket(socket.AF_UNIX) as asks, open(reads, "rb", buffering=0) as pipe:
        asks.connect(str(Path(small.python).with_name(SOCKET)))
        socket.send_fds(asks, [struct.pack("!I", 9)], [writes])
        os.close(writes)
        asks.close()
        assert select.select([pipe], [], [], LIMIT_S)[0] and pipe.read() == b""


@pytest.mark.parametrize("has_hook", [True, False])
def test_given_a_hook_and_a_python_of_the_user_s_then_ray_takes_them(small, tmp_path, has_hook):
    (tmp_path / "mine.py").write_text("def hook(found):\n    return {**(found or {}), 'env_vars': {'A': '1'}}")
    environment = cpu_environment(os.environ, code_path=tmp_path) | {"VERL_PLATFORM": ""}
    environment |= {"RAY_RUNTIME_ENV_HOOK": "mine.hook"} if has_hook else {}
    log = tmp_path / "log"
    with ForkedTraining([small.python, "-c", HOOKED], environment=environment, log_file=log) as training:
        training.watch(LIMIT_S)
        assert training.exit_code == 0, log.read_text()
    own = {"env_vars": {"A": "1"}} if has_hook else {}
    found = json.loads(log.read_text())
    assert found == [own | {"py_executable": small.python}, own | {"pip": ["a"]}, own | {"py_executable": "mine"}]


@pytest.mark.parametrize("strike", ["stand-in", "its group", "fork", "the fork's group"])
def test_given_a_kill_of_either_then_both_end_and_no_other(small, strike):
    process, other = small.start(WAITS, start_new_session=True), small.start(WAITS)
    fork, spared = fork_of(process), fork_of(other)
    act, pid = (os.killpg if "group" in strike else os.kill), (fork.pid if "fork" in strike else process.pid)
    act(pid, signal.SIGKILL)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert_ends(fork)
    assert spared.is_running() and other.poll() is None
    assert small.start("").wait(LIMIT_S) == 0, "the server is gone"


def test_given_a_spawned_process_then_it_is_a_fork_its_parent_waits_for(small, tmp_path):
    (tmp_path / "spawns.py").write_text(SPAWNS)
    process = small.start(tmp_path / "spawns.py")
    stand_in, pid, has_modules, parent = process.stdout.readline().split()
    assert stand_in != pid and has_modules == "True"
    assert int(pid) in [child.pid for child in children(psutil.Process(int(parent)))]
    os.kill(int(stand_in), signal.SIGTERM)
    assert int(process.stdout.readline()) == -signal.SIGTERM


def test_given_a_fork_that_ray_has_named_then_the_guard_of_its_driver_finds_it(small):
    fork = fork_of(small.start(NAMED, env=os.environ | {ray_guard.DRIVER_VARIABLE: "a-mark", "SPT_NOENV": "1"}))
    assert fork.environ()[ray_guard.DRIVER_VARIABLE] == "a-mark"
    assert fork.pid in list(ray_guard._left_by_driver("a-mark"))


def test_given_the_owner_when_it_is_killed_then_forks_their_orphans_and_the_server_end(small):
    starts = f"import subprocess, sys; subprocess.Popen(['sleep', '601'], start_new_session=True); {WAITS}"
    process, killed = small.start(starts), small.start(starts)
    forks = [fork_of(process), fork_of(killed)]
    server = forks[0].parent()
    left = [server, *server.children(recursive=True)]
    assert len(left) == 5
    killed.kill()
    assert_ends(forks[1])
    small.owner.kill()
    assert_ends(*left)
    assert process.wait(LIMIT_S) != 0 and not Path(small.python).parent.exists()


def test_given_a_server_of_this_process_when_its_context_is_left_then_it_ends_with_its_forks():
    with ForkServer(["setproctitle"]) as forks:
        process = subprocess.Popen([forks.executable(), "-c", WAITS], stdout=PIPE, text=True)
        fork = fork_of(process)
        server = fork.parent()
    assert_ends(fork, server)
    assert process.wait(LIMIT_S) == -signal.SIGKILL and not forks.folder.exists()
    process.stdout.close()


def test_given_what_a_training_imports_then_the_server_has_all_but_ray_verl_and_the_recipe_and_nothing_is_compiled(
    tmp_path,
):
    done = subprocess.run(
        [fork_server.executable(), "-c", IMPORTS],
        env=cpu_environment(os.environ | {"TMPDIR": str(tmp_path)}, code_path=fork_server.ROOT),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    temporary, imported, compiled, looks = json.loads(done.stdout.splitlines()[-1])
    assert (temporary, compiled, looks) == (str(tmp_path), 0, True)
    others = [name for name in imported if name.partition(".")[0] not in (*KEPT_OUT, OWN)]
    assert len(others) < MOST_IMPORTED, others
