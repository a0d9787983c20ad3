"""What a process that does not compute must not import: it would take one to eight seconds of a core."""

import subprocess
import sys
from collections.abc import Sequence

HEAVY = ("tensordict", "torch", "transfer_queue", "transformers", "verl", "vllm")


def assert_imports_without(blocked: Sequence[str], modules: Sequence[str]) -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked}))"  # the error says who imports it
    subprocess.run([sys.executable, "-c", f"{block}; import {', '.join(modules)}"], check=True, timeout=500)
