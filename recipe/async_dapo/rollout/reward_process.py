"""What runs in a reward process: loads the reward function, and answers calls until its reward worker is gone.

Started as a file of its own by `reward_isolation`, and imports the standard library only: one that ran for too long is
replaced in 0.1 s plus what the reward function's module takes to import.

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
import re
import socket
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_DEPTH = 32  # of what a reward function returns; below it there is text
MOST_CHARS = 1000  # of the text that stands for an object, and of an error
MOST_TRACEBACK_CHARS = 20_000
INT64 = range(-(2**63), 2**63)

# Folders of code that is not the user's: this recipe's, installed packages', Python's own.
NOT_THE_USERS = (
    f"{Path(__file__).resolve().parents[1]}{os.sep}",
    *(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)

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


def describe(error: BaseException) -> str:
    """The error, and the file and line of the user's code that it comes from."""
    frames = user_frames(error) or traceback.extract_tb(error.__traceback__)
    what = shortened(repr(error), MOST_CHARS)
    return f"{what} at {shown_name(frames[-1].filename)}:{frames[-1].lineno}" if frames else what


def user_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on."""
    told = traceback.TracebackException.from_exception(error)
    frames = user_frames(error)
    while frames and told.stack[0] not in frames:
        told.stack.pop(0)
    return shortened("".join(told.format()).rstrip(), MOST_TRACEBACK_CHARS)


def shortened(text: str, most: int, side: str = "middle") -> str:
    """The text, cut if it has more characters.

    Args:
        side: where it is cut, as verl's `multi_turn.tool_response_truncate_side` has it for answers of tools.
    """
    if len(text) <= most:
        return text
    head, tail = {"left": (0, most), "right": (most, 0)}.get(side, (most // 2, most // 2))
    return f"{text[:head]}...(truncated)...{text[len(text) - tail :]}"


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those that belong neither to this recipe, nor to an installed package, nor to Python."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((*NOT_THE_USERS, "<"))]


def shown_name(filename: str) -> str:
    """A file's name as the user knows it: copies that are shipped to other nodes have a checksum in theirs."""
    return re.sub(r"_[0-9a-f]{8}(?=\.py$)", "", Path(filename).name)


def plain(value: Any, depth: int = 0) -> Any:
    """The value as None, numbers, text, lists and dicts with text as keys: what every process can unpickle, what a
    checkpoint can hold and what verl can write as JSON. Numbers of any kind, such as numpy's, torch's, Decimal and
    Fraction, become Python's. Anything else becomes text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    try:
        if isinstance(value, bytes | bytearray):
            return value.decode(errors="replace")
        if depth < MAX_DEPTH:
            if isinstance(value, Mapping):
                return {_text(str(key)): plain(item, depth + 1) for key, item in value.items()}
            if isinstance(value, list | tuple | set | frozenset):
                return [plain(item, depth + 1) for item in value]
            if hasattr(value, "tolist"):  # arrays, tensors, and numpy's numbers
                content = value.tolist()  # of numpy's longest float it is that itself
                return float(value) if type(content) is type(value) else plain(content, depth + 1)
            return int(value) if isinstance(value, int) and value in INT64 else float(value)
    except Exception:  # of the value's own code: it is no number
        pass
    try:
        return f"{value!r:.{MOST_CHARS}}"
    except Exception:
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _text(value: str) -> str:
    """A surrogate that stands alone, which is no text in UTF-8, becomes a question mark."""
    return str.__str__(value).encode(errors="replace").decode()


def answer_of(result: Any, path: str, name: str) -> Answer:
    """What a call of that function has returned; verl's reward managers take the score of it."""
    content = plain(result)
    score = content.get("score") if isinstance(content, dict) else content
    if isinstance(score, int | float):
        return "score", content, ""
    what = f"{content!r:.{MOST_CHARS}}, which is no number and has none as `score`"
    return "raised", f"{name} of {shown_name(path)} returns {what}", ""


def failed(error: BaseException) -> Answer:
    """A reward may raise anything, also what would end this process: it is an answer like others."""
    return "timeout" if isinstance(error, TimeoutError) else "raised", describe(error), user_traceback(error)


def main(connection: socket.socket) -> None:
    end_with_reward_worker(lifeline=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    stream = connection.makefile("rwb")

    def send(message: Any) -> None:
        pickle.dump(message, stream)
        stream.flush()

    sys.path[:] = pickle.load(stream)
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


if __name__ == "__main__":
    with suppress(EOFError, ConnectionError):  # the reward worker is gone
        main(socket.socket(fileno=int(sys.argv[1])))
