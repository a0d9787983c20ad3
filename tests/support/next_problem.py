"""The tool of `tool_agent`, in a file of its own: verl loads tools by path. It takes money for every call, and some of
its calls take longer than a round."""

import asyncio
import json
import os
from pathlib import Path

from verl.tools.function_tool import function_tool

from recipe.async_dapo.calls import call_id, unknown_calls

LEDGER = "TILL_FILE"  # names the file in which every charge is a line
SLOW_S = 20.0


def charges(file: Path) -> list[dict[str, str]]:
    """What has been paid so far, in order."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def recover(call: str) -> str:
    """The answer that was paid for in a process that is gone."""
    paid = {charge["call"]: charge["answer"] for charge in charges(Path(os.environ[LEDGER]))}
    return paid[call]


@function_tool
@unknown_calls("fail_trajectory", recover)
async def next_problem(length: int) -> str:
    """Give another problem.

    Args:
        length: Characters of the last answer.
    """
    answer = f"{length % 100:02d}+4*{1 + length % 9:02d}"
    line = json.dumps({"call": call_id(), "answer": answer}) + "\n"
    ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, line.encode())  # whole, whoever else writes
    os.close(ledger)
    if length % 5 == 0:
        await asyncio.sleep(SLOW_S)
    return answer
