"""An agent loop with a stateful environment: the model writes Python, and an interpreter runs it.

The interpreter is a process that goes on from step to step of the training. Where it is gone, another one is given the
same code again. Code that takes too long or ends its process is answered with that, and the next code meets a new
process. It is a process and no more: what must not reach your files or network belongs into a container.
"""

import asyncio
import json
import sys
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from recipe.async_dapo.calls import recorded

from .dialogue import Dialogue

TURNS = 4
LIMIT_S = 10.0  # for a piece of code
MOST_CHARS = 2000  # of what a piece prints
INTERPRETER = (
    f"MOST_CHARS = {MOST_CHARS}"
    + """
import contextlib, io, json, os, queue, sys, threading

def read():
    for line in sys.stdin:
        pieces.put(line)
    os._exit(0)  # the worker is gone: this ends, too, whatever it runs

names, pieces = {"exit": sys.exit, "quit": sys.exit}, queue.SimpleQueue()  # Python's own wait for the line after it
threading.Thread(target=read, daemon=True).start()
while True:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            exec(json.loads(pieces.get()), names)
        except BaseException as error:
            print(repr(error))
    print(json.dumps(output.getvalue()[:MOST_CHARS]), flush=True)
"""
)


class Sandbox:
    """An interpreter that has run all of `code`, in whatever process."""

    def __init__(self) -> None:
        self.code: list[str] = []
        self.process: asyncio.subprocess.Process | None = None
        self._done = 0
        self._is_busy = self._is_closed = False

    async def output(self) -> str:
        """What the last piece of code printed; pieces that this process has not run yet are run before it."""
        self._is_busy = True
        try:
            printed = ""
            while self._done < len(self.code):
                printed = await self._run(self.code[self._done])
                self._done += 1
            return printed
        finally:
            self._is_busy = False
            if self._is_closed:
                await self.close()

    async def _run(self, piece: str) -> str:
        try:
            return await asyncio.wait_for(self._ask(piece), LIMIT_S)
        except TimeoutError:
            what = f"it took more than {LIMIT_S:g} s"
        except (OSError, ValueError):  # no answer, or none of the interpreter's
            what = "it ended the interpreter"
        await self._kill()
        return f"{what}; a new interpreter takes its place"

    async def _ask(self, piece: str) -> str:
        if self.process is None:
            pipe = asyncio.subprocess.PIPE
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", INTERPRETER, stdin=pipe, stdout=pipe
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write((json.dumps(piece) + "\n").encode())
        return json.loads(await self.process.stdout.readline())

    async def _kill(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.returncode is None:
            process.kill()
        if process is not None:
            await process.communicate()

    async def close(self) -> None:
        """A call that is under way when the loop ends goes on, and ends the process."""
        self._is_closed = True
        if not self._is_busy:
            await self._kill()


class Coding(AgentLoopBase):
    keeps_state = True  # stays alive when a training step ends; else it runs again over what is recorded

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        sandbox = Sandbox()
        dialogue = Dialogue(self, sample["raw_prompt"], sampling_params)
        try:
            while True:
                sandbox.code.append(await dialogue.ask())
                if dialogue.turns == TURNS or dialogue.is_full:
                    return dialogue.output()
                await dialogue.tell(await recorded(sandbox.output))
                if dialogue.is_full:
                    return dialogue.output()
        finally:
            await sandbox.close()
