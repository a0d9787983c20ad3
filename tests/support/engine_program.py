"""Runs programs of this folder that start an engine on the CPU: each in a process of its own, forked from one that has
imported what all of them need; that one is a fork as well.

python -m tests.support.engine_program '[["PROGRAM", ARGUMENT, ...], ...]'
"""

import asyncio
import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

from recipe.async_dapo_lab.quickstart.activation import cpu_environment

from .fork_server import ROOT, executable
from .forked import in_a_fork


def seen_by(*programs: tuple[object, ...], timeout_s: float) -> list[dict[str, Any]]:
    """What each of them says, one after the other. A program is named first, one of this folder by its last name,
    and then what its `main` is given."""
    done = subprocess.run(
        [executable(), "-m", __name__, json.dumps(programs, default=str)],
        cwd=ROOT,
        env=cpu_environment(os.environ, code_path=ROOT),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return seen


def module_of(program: str) -> Any:
    return import_module(program if "." in program else f"{__package__}.{program}")


def said(program: str, *arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = asyncio.run(module_of(program).main(*arguments))
    return answer


def main(programs: list[list[Any]]) -> list[dict[str, Any]]:
    for name, *_ in programs:
        module_of(name)
    return [in_a_fork(said, *program) for program in programs]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
