"""Programs of this folder that start an engine, each in a process of its own on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from recipe.async_dapo_lab.quickstart.activation import cpu_environment

ROOT = Path(__file__).parents[2]


def seen_by(program: str, *arguments: object, timeout_s: float) -> dict[str, Any]:
    """What it says in its last line."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{program}", *map(str, arguments)],
        cwd=ROOT,
        env=cpu_environment(os.environ, code_path=ROOT),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen
