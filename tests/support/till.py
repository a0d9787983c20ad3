"""Takes money for every call, in this process or through a tool server that some calls kill."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from recipe.async_dapo.calls import call_id, unknown_calls

from . import till_server

FOLDER = "TILL_FOLDER"  # names the folder of the ledgers
LEDGER = "till.jsonl"  # of every charge, a line
DIARY = "loops.jsonl"  # of every interruption and every end of an agent loop
PROCESSES = "processes.jsonl"  # that loops have started

SLOW_S = 12.0  # of a call that outlives its round
STEP_S = 30.0  # longest wait for the end of a step that may wait for the group of this call
NEVER_NEEDED_S = 600.0  # of one that never does: in so few steps no token grows too old
LOOKS_EVERY_S = 0.1

_over_a_step = asyncio.Lock()  # of the one call that waits for it, in each process


class ServerDied(RuntimeError):
    pass


def lines(file: Path) -> list[dict[str, Any]]:
    """The lines so far, in order."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def note(**fields: object) -> None:
    till_server.write_line(str(_folder() / DIARY), **fields)


def note_process(pid: int, pieces: int) -> None:
    """A process that has run so many pieces of code."""
    till_server.write_line(str(_folder() / PROCESSES), pid=pid, pieces=pieces)


def recover(call: str) -> str:
    """The answer that was paid for in a process that is gone."""
    return {charge["call"]: charge["answer"] for charge in lines(_folder() / LEDGER)}[call]


@unknown_calls("fail_trajectory", recover)
async def pay(length: int, wait_s: float) -> str:
    """Here. One call at a time waits for the end of the step, so that one is under way when the round ends.

    Args:
        wait_s: no longer than this; 0: none waits [s].
    """
    answer = till_server.answer_to(length)
    till_server.write_line(str(_folder() / LEDGER), call=call_id(), answer=answer, died=False)
    if wait_s and not _over_a_step.locked():
        async with _over_a_step:
            step = _steps()
            for _ in range(int(wait_s / LOOKS_EVERY_S)):
                await asyncio.sleep(LOOKS_EVERY_S)
                if _steps() != step:
                    break
    return answer


class Server:
    """The server process, started when it is asked and again when it has died."""

    def __init__(self) -> None:
        self._socket = Path(tempfile.mkdtemp(prefix="till"), "socket")
        self._process: subprocess.Popen[str] | None = None

    async def pay(self, length: int) -> str:
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
            writer.write((json.dumps({"call": call_id(), "length": length}) + "\n").encode())
            answer = await reader.read()
            writer.close()
        except OSError as error:
            raise ServerDied("cannot be reached") from error
        if not answer:
            raise ServerDied("no answer")
        return answer.decode()

    def _start(self) -> None:
        self._socket.unlink(missing_ok=True)
        command = [sys.executable, "-I", till_server.__file__, str(self._socket), str(_folder() / LEDGER)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"


def _steps() -> int:
    """Steps that this life of the run has trained."""
    file = _folder() / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def _folder() -> Path:
    return Path(os.environ[FOLDER])
