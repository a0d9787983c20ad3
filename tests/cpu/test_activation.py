"""The CPU plugin acts where VERL_PLATFORM=cpu, in every process, and nowhere else."""

import json
import os
import subprocess
import sys
from pathlib import Path

from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH, cpu_environment

PROBE = """
import importlib.metadata, json, os, torch
untouched = torch.distributed.init_process_group
import verl
from verl.plugin.platform import PlatformRegistry, get_platform
try:
    vllm_version = importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    vllm_version = None
from async_dapo_cpu.vllm_mends import register
from vllm.model_executor.layers import utils
before = utils.dispatch_cpu_unquantized_gemm
register()
register()
after = utils.dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.fused_moe import cpu_fused_moe
layer = torch.nn.Module()
layer.experts = torch.nn.Parameter(torch.ones(2))
layer.experts.weight_loader = "a loader"
cpu_fused_moe.replace_parameter(layer, "experts", torch.zeros(3))
print(json.dumps({
    "registered": "cpu" in PlatformRegistry.registered_names(),
    "device": get_platform().device_name,
    "patched": torch.distributed.init_process_group is not untouched,
    "vllm_version": vllm_version,
    "keeps_weights": after is not before and after.__wrapped__ is before,
    "keeps_experts": len(layer.experts) == 3 and hasattr(layer.experts, "weight_loader"),
    "engine_device": os.environ.get("VERL_ENGINE_DEVICE"),
}))
"""
ENTRY_POINTS = """
import importlib.metadata as m
groups = ("verl.plugins", "vllm.general_plugins")
print([group for group in groups if m.entry_points(group=group, name="async_dapo_cpu")])
"""


def run(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=500, check=False
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
    assert not state["keeps_weights"] and not state["keeps_experts"]
    assert state["device"] == "cuda"
    assert state["engine_device"] is None


def test_given_the_cpu_environment_when_verl_is_imported_then_it_runs_on_cpu():
    state = json.loads(run(PROBE, cpu_environment(plain_environment())))
    assert state["registered"] and state["patched"] and state["keeps_weights"] and state["keeps_experts"]
    assert state["device"] == "cpu"
    assert "+cpu" in state["vllm_version"]


def test_given_the_plugin_folder_on_the_path_when_asked_then_verl_and_vllm_find_its_entry_points():
    assert run(ENTRY_POINTS, cpu_environment(plain_environment())) == "['verl.plugins', 'vllm.general_plugins']"


def test_given_a_python_path_when_activated_then_it_stays_behind_the_plugin_without_repetition():
    environment = cpu_environment({"PYTHONPATH": f"a{os.pathsep}{PLUGIN_PATH}"}, code_path=Path("b"))
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(PLUGIN_PATH), "b", "a"]
    assert environment["VERL_PLATFORM"] == "cpu"
