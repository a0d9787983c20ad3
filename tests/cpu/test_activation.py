"""The CPU plugin acts where VERL_PLATFORM=cpu, in every process, and nowhere else."""

from ..support import verl_imported  # noqa: F401, I001 (first of all)

import json
import os
import subprocess
import sys
from pathlib import Path

from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH, cpu_environment

from ..support import activated
from ..support.forked import in_a_fork

ROOT = Path(__file__).parents[2]

PROBE = "import json; from tests.support.activated import state; print(json.dumps(state()))"
ENTRY_POINTS = """
import importlib.metadata as m
groups = ("verl.plugins", "vllm.general_plugins")
print([group for group in groups if m.entry_points(group=group, name="async_dapo_cpu")])
"""


def run(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


# What selects the plugin, and what it sets in a process that has imported verl, as this one may have.
CPU_VARIABLES = ("VERL_PLATFORM", "PYTHONPATH", "VERL_ENGINE_DEVICE", "TORCHDYNAMO_DISABLE")


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in CPU_VARIABLES}


def test_given_no_verl_platform_when_verl_is_imported_with_the_plugin_on_the_path_then_nothing_changes():
    state = json.loads(run(PROBE, plain_environment() | {"PYTHONPATH": str(PLUGIN_PATH)}))
    assert not state["registered"] and not state["patched"]
    assert not any(state[does] for does in ("keeps_weights", "keeps_experts", "computes_experts"))
    assert state["device"] == "cuda"
    assert state["engine_device"] is None


def test_given_the_cpu_environment_when_verl_is_imported_then_it_runs_on_cpu():
    """This process has it; that of others leads them to the plugin, as the next test shows."""
    state = in_a_fork(activated.state)
    assert state["registered"] and state["patched"]
    assert all(state[does] for does in ("keeps_weights", "keeps_experts", "computes_experts"))
    assert state["device"] == "cpu"
    assert "+cpu" in state["vllm_version"]


def test_given_the_plugin_folder_on_the_path_when_asked_then_verl_and_vllm_find_its_entry_points():
    assert run(ENTRY_POINTS, cpu_environment(plain_environment())) == "['verl.plugins', 'vllm.general_plugins']"


def test_given_a_python_path_when_activated_then_it_stays_behind_the_plugin_without_repetition():
    environment = cpu_environment({"PYTHONPATH": f"a{os.pathsep}{PLUGIN_PATH}"}, code_path=Path("b"))
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(PLUGIN_PATH), "b", "a"]
    assert environment["VERL_PLATFORM"] == "cpu"
