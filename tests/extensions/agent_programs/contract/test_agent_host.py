"""Agents in processes of their own: their results and failures, what they see, and that none outlives its worker."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.users_errors import TrajectoryFailed
from recipe.async_dapo.extensions.agent_programs import agent_host
from recipe.async_dapo.extensions.agent_programs.agent_host import AgentHost, _Process
from recipe.async_dapo.extensions.agent_programs.agent_program import Program as HostProgram
from recipe.async_dapo.extensions.agent_programs.agent_program import run_command
from recipe.async_dapo.extensions.agent_programs.programs import Program

PATIENCE_S = 300.0  # what has not happened by then hangs
# So long that no test waits for its end, and of no other process of this machine.
SLEEP = ["sleep", str(10**6 + os.getpid())]
AGENTS = """
import asyncio, os, sys, threading, time

six = threading.Barrier(6)

def plain(base_url, key, sample):
    return {"reward": sample["x"], "at": base_url}

async def slow(base_url, key, sample):
    await asyncio.sleep(1234)

def blocks(base_url, key, sample):
    time.sleep(0.5)
    return 1.0

def meets_five(base_url, key, sample):
    six.wait(300)
    return 1.0

def fails(base_url, key, sample):
    raise ValueError("of its own")

def leaves(base_url, key, sample):
    sys.exit("gone")

def ends_its_process(base_url, key, sample):
    os._exit(7)

def environment(base_url, key, sample):
    return dict(os.environ)

def forks_and_ends_its_process(base_url, key, sample):
    if os.fork():
        os._exit(7)
    time.sleep(1234)

def forks_away_and_ends_its_process(base_url, key, sample):
    if child := os.fork():
        while os.getsid(child) != child:
            time.sleep(0.01)
        with open(sample["away"], "w") as file:
            file.write(str(child))
        os._exit(7)
    os.setsid()
    time.sleep(1234)

def stops(base_url, key, sample):
    next(iter(()))

def hides(base_url, key, sample):
    class Hidden(Exception):
        def __repr__(self):
            raise ValueError
    raise Hidden

def odd(base_url, key, sample):
    return {("a", "b"): 1}

def long(base_url, key, sample):
    return "x" * 2**26

def numbers(base_url, key, sample):
    import numpy
    return {"reward": numpy.float32(0.5), "right": numpy.bool_(True)}

def wrapped(base_url, key, sample):
    async def later():
        return 0.5
    return later()

def waits(base_url, key, sample):
    time.sleep(1234)

async def blocks_all(base_url, key, sample):
    open(sample["began"], "w").close()
    time.sleep(1234)

async def swallows(base_url, key, sample):
    while True:
        try:
            await asyncio.sleep(1234)
        except asyncio.CancelledError:
            continue

async def leaves_a_task(base_url, key, sample):
    async def exits():
        sys.exit(3)
    task = asyncio.create_task(exits())
    await asyncio.sleep(1234)
"""


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_agents.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(tmp_path)


def hosted(*starts: dict[str, Any], purpose: str = "functions") -> list[Any]:
    """What becomes of agents that run side by side."""

    async def main() -> list[Any]:
        host = AgentHost.of(purpose)
        try:
            return await asyncio.gather(*[host.run(start) for start in starts], return_exceptions=True)
        finally:
            await host.stop()

    return asyncio.run(main())


def function(name: str, **sample: Any) -> dict[str, Any]:
    return {"agent": f"users_agents:{name}", "base_url": "http://here", "key": "k", "sample": sample}


def command(*words: str, **sample: Any) -> dict[str, Any]:
    environment = agent_host.passed_on(os.environ) | {"OWN": "yes"}
    return {"command": list(words), "environment": environment, "sample": sample}


def python(program: str, **sample: Any) -> dict[str, Any]:
    return command(sys.executable, "-c", program, **sample)


def test_given_functions_then_they_run_side_by_side_and_each_has_its_own_result_or_failure(agents: None) -> None:
    names = ["meets_five"] * 6
    plain, failed, left, absent, *met = hosted(
        function("plain", x=0.5), function("fails"), function("leaves"), function("absent"), *map(function, names)
    )
    assert plain == {"reward": 0.5, "at": "http://here"}
    assert met == [1.0] * 6, "they wait for each other"
    for error, reason, text in (
        (failed, "agent_failed", "ValueError('of its own')"),
        (left, "agent_failed", "SystemExit('gone')"),
        (absent, "agent_not_started", "users_agents:absent cannot be imported"),
    ):
        assert isinstance(error, TrajectoryFailed) and error.reason == reason and text in error.cause.summary
    assert "users_agents.py" in failed.cause.traceback


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ends_its_process", 7),
        ("forks_and_ends_its_process", 7),
        ("forks_away_and_ends_its_process", 7),
        ("leaves_a_task", -9),
    ],
)
def test_given_a_function_that_ends_its_process_then_its_siblings_fail_and_the_next_agent_has_a_new_one(
    agents: None, name: str, code: int, tmp_path: Path
) -> None:
    away = tmp_path / "away"

    async def main() -> tuple[list[Any], Any]:
        host = AgentHost.of("functions")
        both = [host.run(function("slow")), host.run(function(name, away=str(away)))]
        failed = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), PATIENCE_S)
        result = await host.run(function("plain", x=1))
        await host.stop()
        return failed, result

    try:
        failed, result = asyncio.run(main())
    finally:
        if away.exists():
            os.kill(int(away.read_text()), signal.SIGKILL)
    assert all(isinstance(error, TrajectoryFailed) and f"ended with {code};" in str(error) for error in failed)
    assert result["reward"] == 1


def test_given_a_process_that_ends_late_then_agents_of_the_next_one_do_not_fail_with_it(agents: None) -> None:
    """A function that has left its group with a copy of the pipe holds that open behind the process's end."""

    async def main() -> list[Any]:
        host = AgentHost.of("functions")
        first = asyncio.create_task(host.run(function("slow")))
        await asyncio.to_thread(until, lambda: host._process is not None)
        old, blocked = host._process, asyncio.Event()
        assert old is not None
        wait = old._process.wait

        async def waits() -> int:
            code = await wait()
            await blocked.wait()
            return code

        old._process.wait = waits  # type: ignore[method-assign]
        old._process.kill()
        await asyncio.to_thread(until, lambda: old.is_over)
        second = asyncio.create_task(host.run(function("blocks")))
        await asyncio.to_thread(until, lambda: host._process is not old)
        blocked.set()
        ended = await asyncio.gather(first, second, return_exceptions=True)
        await host.stop()
        return ended

    first, second = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert isinstance(first, TrajectoryFailed) and second == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["waits", "blocks_all", "swallows"])
def test_given_a_function_that_does_not_end_when_cancelled_then_its_process_takes_no_more_agents_and_ends_with_the_last(
    agents: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sibling that is there goes on to its end, or with `blocks_all` until it is ended as well."""
    monkeypatch.setattr(agent_host, "END_S", 0.5)

    async def main() -> tuple[Any, Any]:
        host = AgentHost.of("functions")
        sibling = asyncio.create_task(host.run(function("slow")))
        stuck = asyncio.create_task(host.run(function(name, began=str(tmp_path / "began"))))
        await asyncio.to_thread(until, lambda: host._process is not None and len(host._process._ended) == 2)
        old = host._process
        assert old is not None
        if name == "blocks_all":
            await asyncio.to_thread(until, (tmp_path / "began").exists)
        else:
            await host.run(function("plain", x=0))
        stuck.cancel()
        await asyncio.to_thread(until, lambda: old.is_held_up)
        result = await host.run(function("plain", x=1))
        assert host._process is not old and not old.is_over
        sibling.cancel()
        await asyncio.wait({sibling, stuck})
        await asyncio.to_thread(until, lambda: old.is_over)
        await host.stop()
        return result

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S))["reward"] == 1


def test_given_a_function_that_ends_late_when_cancelled_then_its_process_stays(
    agents: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_host, "END_S", PATIENCE_S)

    async def main() -> bool:
        host = AgentHost.of("functions")
        cancelled = asyncio.create_task(host.run(function("blocks")))
        await asyncio.to_thread(until, lambda: host._process is not None and len(host._process._ended) == 1)
        process = host._process
        assert process is not None
        cancelled.cancel()
        await asyncio.wait({cancelled})
        await asyncio.to_thread(until, lambda: not process._cancelled)
        is_free = not process.is_held_up
        await host.stop()
        return is_free

    assert asyncio.run(main())


def test_given_what_a_function_may_return_or_raise_then_its_end_is_told_at_once(agents: None) -> None:
    names = ("stops", "hides", "odd", "long", "numbers", "wrapped")
    stopped, hidden, odd, long, numbers, wrapped = hosted(*map(function, names))
    for error, text in ((stopped, "StopIteration"), (hidden, "Hidden"), (odd, "keys must be"), (long, "bytes, more")):
        assert isinstance(error, TrajectoryFailed) and error.reason == "agent_failed" and text in error.cause.summary
    assert numbers == {"reward": 0.5, "right": True} and wrapped == 0.5


def test_given_a_worker_that_dies_while_it_writes_then_its_process_of_agents_ends() -> None:
    program = [sys.executable, "-m", f"{agent_host.__package__}.agent_program"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as host:
        assert host.stdin is not None
        host.stdin.write(b'{"start": 1, "agent": "users_ag')
        host.stdin.close()
        assert host.wait(timeout=PATIENCE_S) == -signal.SIGKILL


def test_given_secrets_of_the_worker_then_no_agent_sees_them(agents: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    [of_function] = hosted(function("environment"))
    [of_command] = hosted(python("import json, os; print(json.dumps(dict(os.environ)))"), purpose="commands")
    assert of_command["OWN"] == "yes" and of_command["PATH"] == of_function["PATH"] == os.environ["PATH"]
    assert "secret" not in [*of_function.values(), *of_command.values()]


def test_given_commands_then_a_file_or_the_last_line_is_the_result_and_each_has_a_fresh_folder() -> None:
    here = "import json, os, sys; sample = json.load(open('sample.json')); "
    printed, filed, silent, failed, absent, daemon, detached, fails = hosted(
        python(here + "print('words'); print(json.dumps({'reward': sample['x'], 'at': os.getcwd()}))", x=0.25),
        python(here + "open('result.json', 'w').write('{\"reward\": 1}'); print('{\"reward\": 0}')"),
        python("print('no JSON')"),
        python("import sys; print('trouble', file=sys.stderr); sys.exit(3)"),
        command("/absent/program"),
        command("bash", "-c", "sleep 60 & echo 1"),
        command("bash", "-c", "setsid sleep 5 & echo 1"),  # it keeps the pipes open
        command("bash", "-c", "setsid sleep 5 & echo trouble >&2; exit 3"),
        purpose="commands",
    )
    assert printed["reward"] == 0.25 and not os.path.exists(printed["at"])
    assert (filed, silent, daemon, detached) == ({"reward": 1}, None, 1, 1)
    for one in (failed, fails):
        assert one.reason == "agent_failed" and "ended with 3: trouble" in one.cause.summary
    assert absent.reason == "agent_not_started" and "/absent/program" in absent.cause.summary


def test_given_a_start_and_its_cancel_heard_together_then_its_end_is_told() -> None:
    async def main() -> list[Any]:
        out = io.StringIO()
        program = HostProgram(out)
        program.hear({"start": 7} | function("slow"))
        program.hear({"cancel": 7})
        await asyncio.wait(set(program._running.values()))
        await asyncio.sleep(0)  # what the task's end calls
        assert not program._running
        return [json.loads(line) for line in out.getvalue().splitlines()]

    assert [told["ended"] for told in asyncio.run(main())] == [7]


TELLS = """
import json
number = json.loads(input())["start"]
for line in ({"group": 2**22 + 1, "of": 7}, {"ended": 7, "result": 0}, {"ended": number, "result": 1}):
    print(json.dumps(line), flush=True)
input()
"""


def test_given_a_group_that_is_told_after_its_cancel_then_it_is_forgotten_with_its_end() -> None:
    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        words = [sys.executable, "-c", TELLS]
        host = _Process(
            await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        )
        assert await host.run(0, {}) == 1
        assert not host._groups
        await host.stop()

    asyncio.run(main())


SLEEPERS = " ".join([*SLEEP, "&", *SLEEP])  # a process and its child


def running() -> int:
    count = 0
    for one in psutil.process_iter():
        try:
            count += one.cmdline() == SLEEP
        except psutil.Error:
            continue
    return count


def until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.05)


def test_given_a_command_whose_session_ends_then_its_process_group_ends_with_it() -> None:
    async def main() -> None:
        host = AgentHost.of("commands")
        task = asyncio.create_task(host.run(command("bash", "-c", SLEEPERS)))
        await asyncio.to_thread(until, lambda: running() == 2)
        task.cancel()
        await asyncio.to_thread(until, lambda: running() == 0)
        await host.stop()

    asyncio.run(main())


WORKER = f"""
import asyncio
from recipe.async_dapo.extensions.agent_programs.agent_host import AgentHost
start = {{"command": ["bash", "-c", "{SLEEPERS}"], "environment": {{"PATH": "/usr/bin:/bin"}}, "sample": {{}}}}

async def main():
    await AgentHost.of("commands").run(start)

asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["worker", "host"])
def test_given_a_worker_or_its_process_of_agents_that_is_killed_then_no_command_is_left(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    worker = psutil.Popen([sys.executable, "-c", WORKER], stderr=subprocess.DEVNULL)
    until(lambda: running() == 2)
    [host] = worker.children()
    (worker if victim == "worker" else host).send_signal(signal.SIGKILL)
    until(lambda: running() == 0)
    worker.wait(timeout=PATIENCE_S)
    if victim == "worker":
        until(lambda: not any(tmp_path.iterdir()))


def test_given_a_process_of_agents_that_dies_as_it_starts_a_command_then_its_worker_has_been_told_of_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_process, begun = asyncio.create_subprocess_exec, list[int]()

    async def dies(*words: str, **options: Any) -> None:
        process = await start_process(*words, **options)
        begun.append(process.pid)
        process.kill()
        await process.communicate()
        raise RuntimeError("dead")

    async def main(out: io.TextIOBase) -> None:
        with pytest.raises(RuntimeError, match="dead"):
            await run_command({"start": 7} | command(*SLEEP), HostProgram(out)._tell)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", dies)
    reads, writes = os.pipe()
    with os.fdopen(reads) as told, os.fdopen(writes, "w") as out:
        asyncio.run(main(out))
        out.close()
        assert [json.loads(line) for line in told] == [{"group": begun[0], "of": 7}]


def test_what_is_passed_on_is_a_list_of_names() -> None:
    passed = agent_host.passed_on({"PATH": "a", "LC_ALL": "b", "TOKEN": "c"})
    assert passed.keys() == {"PATH", "LC_ALL"}


def test_given_a_process_that_tells_no_message_then_it_is_ended_and_its_agents_fail() -> None:
    async def main() -> None:
        pipe, says = asyncio.subprocess.PIPE, "import time; print('no message', flush=True); time.sleep(1234)"
        command = [sys.executable, "-c", says]
        told = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
        with pytest.raises(TrajectoryFailed, match="ended with -9;"):
            await asyncio.wait_for(_Process(told).run(0, {}), PATIENCE_S)

    asyncio.run(main())


def test_given_an_agent_that_cannot_be_started_then_start_up_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def check(*, agent: str | None = None, command: list[str] | None = None) -> list[str]:
        return Program("file", agent=agent, command=command, environment={}).check()

    for wrong, text in (
        ({"agent": "absent_module:run"}, "file, agent=absent_module:run: cannot be loaded: ModuleNotFoundError"),
        ({"agent": "json:absent"}, "cannot be loaded: AttributeError"),
        ({"agent": "json:__name__"}, "is no function"),
        ({"command": ["absent-program"]}, "file, command=absent-program: is not found"),
    ):
        with pytest.raises(ConfigError) as refused:
            check(**wrong)
        assert text in str(refused.value)
    assert check(agent="json:loads") == check(command=["bash", "-c", "true"]) == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "solve.sh").touch()
    assert check(command=["bash", str(tmp_path / "solve.sh")]) == []
    [told] = check(command=["bash", "solve.sh"])
    assert told == "its command runs in a fresh folder, without solve.sh: give that file's whole path"
