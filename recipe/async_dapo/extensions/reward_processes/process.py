"""What runs in a reward process: loads the reward function, and answers calls until its reward worker is gone.

`pool` starts it. It imports the standard library only: one that ran for too long is replaced in 0.1 s plus what the
reward function's module takes to import.

    reward worker --sys.path, function, arguments...--> process
                  <--what kept it from loading, answers...--

A call runs on the main thread, one at a time; a coroutine function's on an event loop there. What it returns becomes
plain data here, where its types are known: no other process has to import the user's module.
"""

import asyncio
import fcntl
import importlib
import importlib.util
import inspect
import os
import pickle
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.users_errors import MOST_CHARS, describe, shown_name, user_traceback
from ...rollout.reward_values import plain_reward

Answer = tuple[str, Any, str]  # `score`, `raised` or `timeout`; the result, or what went wrong; the traceback


def end_with_reward_worker(lifeline: int) -> None:
    """Let the kernel end this process and what it has started when the other end of a pipe closes.

    A thread that watches would not run while the function holds the interpreter, as a regular expression does.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO ends a process


def load(path: str, name: str) -> Callable[..., Any]:
    """The function of a `pkg://` module or of a file, as verl would load it."""
    if path.startswith("pkg://"):
        module = importlib.import_module(path.removeprefix("pkg://").replace("/", "."))
    else:
        file = Path(path.removeprefix("file://"))
        if not file.is_file():
            raise FileNotFoundError(f"no such file: {file}")
        spec = importlib.util.spec_from_file_location(f"reward_function_of_{file.stem}", file)
        if spec is None or spec.loader is None:
            raise ImportError(f"not a Python file: {file}")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses and pickle look there
        spec.loader.exec_module(module)
    return getattr(module, name)


def answer_of(result: Any, path: str, name: str) -> Answer:
    """What a call of that function has returned; verl's reward managers take the score of it."""
    content = plain_reward(result)
    score = content.get("score") if isinstance(content, dict) else content
    if isinstance(score, int | float):
        return "score", content, ""
    what = f"{content!r:.{MOST_CHARS}}, which is no number and has none as `score`"
    return "raised", f"{name} of {shown_name(path)} returns {what}", ""


def failed(error: BaseException) -> Answer:
    """A reward may raise anything, also what would end this process: it is an answer like others."""
    return "timeout" if isinstance(error, TimeoutError) else "raised", describe(error), user_traceback(error)


def main(connection: int) -> None:
    """Answer calls on this socket."""
    with suppress(EOFError, ConnectionError):  # the reward worker is gone
        _answer(socket.socket(fileno=connection))


def _answer(connection: socket.socket) -> None:
    end_with_reward_worker(lifeline=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    stream = connection.makefile("rwb")

    def send(message: Any) -> None:
        pickle.dump(message, stream)
        stream.flush()

    path, name, constants = pickle.load(stream)
    try:
        loaded = load(path, name)
    except BaseException as error:
        send(describe(error))
        return
    send(None)
    run = asyncio.Runner().run
    while True:
        arguments = pickle.load(stream)
        try:
            result = loaded(**arguments | constants)
            answer = answer_of(run(result) if inspect.iscoroutine(result) else result, path, name)
        except BaseException as error:
            answer = failed(error)
        send(answer)
