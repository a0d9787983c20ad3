"""The program of a process of agents: see `agent_host.py`. Needs nothing but the standard library.

Coroutine functions run on one event loop, other functions on threads. A command runs in a process group and a folder
of its own.
"""

import asyncio
import ctypes
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ...runtime.containment import called_on_thread

SAMPLE, RESULT = "sample.json", "result.json"  # files in a command's folder
LINE_BYTES = 2**26  # the longest result
_THREADS = 1024
_OUTPUT_BYTES, _TAIL_BYTES = 2**20, 2000  # kept of what a command says; told of its errors
_TRACE_CHARS = 20_000  # told of a function's error
PIPES_S = 2.0  # for what a command has said to arrive
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

commands: dict[str, int | None] = {}  # folders of the commands that run -> their process groups


class Failed(Exception):
    """An agent has ended without a result: the reason that is counted, and what has happened."""


@cache
def function_of(name: str) -> Any:
    """`module:function`"""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


async def run_function(start: dict[str, Any]) -> Any:
    try:
        function = function_of(start["agent"])
    except BaseException as error:  # the user's module may raise anything
        raise Failed("agent_not_started", f"{start['agent']} cannot be imported: {_shown(error)}") from error
    arguments = start["base_url"], start["key"], start["sample"]
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    thread = asyncio.get_running_loop().run_in_executor(None, called_on_thread, function, *arguments)
    try:
        result = await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})  # nothing ends a thread: the worker is told when it has ended by itself
        raise
    return await result if inspect.isawaitable(result) else result


def _shown(error: BaseException) -> str:
    try:
        return repr(error)[:_TAIL_BYTES]
    except BaseException:  # of the user's class
        return type(error).__name__


def plain_json(value: Any) -> Any:
    """Of arrays, tensors and numpy's numbers, JSON; of anything else, its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


async def run_command(start: dict[str, Any], tell: Any) -> Any:
    """Its result file, or the last line that it prints, where that is JSON."""
    folder = tempfile.mkdtemp(prefix="agent-")
    commands[folder] = group = None

    def begins() -> None:
        """In the command's own process, before it runs: this one may be killed at any time behind that."""
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        tell({"group": os.getpid(), "of": start["start"]})

    try:
        Path(folder, SAMPLE).write_text(json.dumps(start["sample"]))  # noqa: ASYNC240 (it is short)
        try:
            process = await asyncio.create_subprocess_exec(
                *start["command"],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=folder,
                env=start["environment"],
                start_new_session=True,
                preexec_fn=begins,
            )
        except OSError as error:
            raise Failed("agent_not_started", f"{start['command'][0]} cannot be started: {error}") from error
        commands[folder] = group = process.pid
        assert process.stdout is not None and process.stderr is not None
        out, errors = bytearray(), bytearray()
        pipes = (process.stdout, out), (process.stderr, errors)
        readers = [asyncio.create_task(_keep_end(pipe, kept)) for pipe, kept in pipes]
        try:
            await end_of_process(group)
            end_group(group)  # what it has left in the background, which would keep the pipes open
            await asyncio.wait(readers, timeout=PIPES_S)  # what has left the group may hold them
            code = await process.wait()
        finally:
            for reader in readers:
                reader.cancel()
            process._transport.close()  # type: ignore[attr-defined]  # a pipe that is held would stay open
        if code:
            tail = (errors.strip() or out.strip())[-_TAIL_BYTES:].decode(errors="replace")
            raise Failed("agent_failed", f"its command has ended with {code}: {tail}")
        return _result(folder, out.decode(errors="replace"))
    finally:
        end_group(group)
        shutil.rmtree(folder, ignore_errors=True)
        del commands[folder]


def end_group(group: int | None) -> None:
    if group is not None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _result(folder: str, out: str) -> Any:
    if (file := Path(folder, RESULT)).exists():
        return json.loads(file.read_text())
    for line in out.strip().splitlines()[-1:]:
        with suppress(ValueError):
            return json.loads(line)
    return None


async def end_of_process(pid: int) -> None:
    """`Process.wait` waits for the end of its pipes, too, which children of it may hold."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:  # it has been waited for
        return
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _keep_end(stream: asyncio.StreamReader, kept: bytearray) -> None:
    while piece := await stream.read(2**16):
        kept += piece
        del kept[:-_OUTPUT_BYTES]


def _line(message: Any) -> str:
    return json.dumps(message, default=plain_json)


class Program:
    """Runs what the worker asks for, until the worker is gone."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._running: dict[int, asyncio.Task[dict[str, Any]]] = {}

    def _tell(self, message: dict[str, Any]) -> None:
        print(_line(message), file=self._out, flush=True)

    async def _run(self, start: dict[str, Any]) -> dict[str, Any]:
        """How it has ended."""
        try:
            result = await (run_command(start, self._tell) if "command" in start else run_function(start))
            if (length := len(_line(result))) > LINE_BYTES:
                raise Failed("agent_failed", f"its agent's result has {length} bytes, more than {LINE_BYTES}")
            return {"result": result}
        except Failed as failed:
            return dict(zip(("kind", "error"), failed.args, strict=True))
        except BaseException as error:  # an agent may raise anything, SystemExit included
            told = "".join(traceback.format_exception(error))[-_TRACE_CHARS:]
            return {"kind": "agent_failed", "error": f"its agent raised {_shown(error)}", "traceback": told}

    def _tell_end(self, number: int, task: asyncio.Task[dict[str, Any]]) -> None:
        del self._running[number]
        cancelled = {"kind": "agent_failed", "error": "its agent was cancelled before it began"}
        self._tell({"ended": number} | (cancelled if task.cancelled() else task.result()))

    def hear(self, told: dict[str, Any]) -> None:
        """A message of the worker."""
        if "start" in told:
            task = self._running[told["start"]] = asyncio.create_task(self._run(told))
            task.add_done_callback(partial(self._tell_end, told["start"]))  # also if it is cancelled before it begins
        elif told["cancel"] in self._running:
            self._running[told["cancel"]].cancel()


def _listen(loop: asyncio.AbstractEventLoop, program: Program) -> None:
    """On a thread, which sees the worker's end also while an agent blocks the event loop."""
    try:
        for line in sys.stdin.buffer:  # the last one is cut, if the worker has died while it wrote it
            loop.call_soon_threadsafe(program.hear, json.loads(line))
    finally:
        _end_all()


def _end_all() -> None:
    for group in list(commands.values()):
        end_group(group)
    for folder in list(commands):
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # itself, and processes that functions have started


async def _serve(out: Any) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="agent"))
    threading.Thread(target=_listen, args=[loop, Program(out)], daemon=True).start()
    await asyncio.Event().wait()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what agents print goes to the worker's log
    try:
        asyncio.new_event_loop().run_until_complete(_serve(out))
    except BaseException:  # SystemExit in a task that an agent has left; `asyncio.run` would wait for all its threads
        traceback.print_exc()
    finally:
        _end_all()


if __name__ == "__main__":
    main()
