"""core/ decides with the standard library only."""

import subprocess
import sys
from pathlib import Path

import recipe.async_dapo.core as core

BLOCKED = ["ray", "torch", "verl", "vllm", "numpy", "omegaconf", "tensordict", "transfer_queue", "transformers"]
MODULES = sorted(path.stem for path in Path(core.__path__[0]).glob("*.py") if path.stem != "__init__")
PROGRAM = """
import importlib, sys
for name in {blocked}:
    sys.modules[name] = None
for name in {modules}:
    importlib.import_module("recipe.async_dapo.core." + name)
ours = {{"recipe", "__main__", "__mp_main__"}}
foreign = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names) - ours
assert foreign <= set({blocked}), foreign
"""


def test_given_ray_torch_verl_and_numpy_blocked_when_every_module_is_imported_then_it_works() -> None:
    assert "round" in MODULES and "pool" in MODULES
    program = "import sys\nbefore = set(sys.modules)\n" + PROGRAM.format(blocked=BLOCKED, modules=MODULES)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=Path(core.__path__[0]).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
