"""What the recipe touches of vLLM's code for GPUs, which no CPU runs: read from the sources that are installed.

The CPU build brings them along: `make test-gpu-versions` reads those of vLLM 0.24.0. VLLM_SOURCES names another folder,
such as that of an unpacked wheel.
"""

import ast
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from recipe.async_dapo.weights.stream import WeightReceiver
from recipe.async_dapo_lab.gpu_check.receiver import BallastReceiver

WORKER = ("v1/worker/gpu_worker.py", "v1/worker/worker_base.py")
RUNNERS = {"first": "v1/worker/gpu_model_runner.py", "second": "v1/worker/gpu/model_runner.py"}


def source(name: str) -> str:
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(os.environ.get("VLLM_SOURCES", Path(spec.origin).parent), name).read_text()


@cache
def class_of(file: str, name: str) -> ast.ClassDef:
    [found] = [node for node in ast.parse(source(file)).body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def methods(file: str, name: str) -> dict[str, ast.FunctionDef]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in class_of(file, name).body if isinstance(node, functions)}


def assigned(file: str, name: str) -> set[str]:
    """Attributes that methods of a class assign to `self`."""
    targets = [
        target
        for node in ast.walk(class_of(file, name))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return {target.attr for target in targets if isinstance(target, ast.Attribute) and _is_self(target.value)}


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def parameters(function: ast.FunctionDef) -> list[str]:
    return [one.arg for one in (*function.args.args, *function.args.kwonlyargs) if one.arg != "self"]


@pytest.mark.parametrize("extension", [WeightReceiver, BallastReceiver])
def test_the_workers_extension_has_no_name_that_the_gpu_worker_has(extension: type) -> None:
    """vLLM refuses to start an engine whose worker and extension share one."""
    taken = {*methods(WORKER[0], "Worker"), *methods(WORKER[1], "WorkerBase")}
    own = {name for name in dir(extension) if not name.startswith("__")}
    assert {"sleep", "wake_up", "execute_model"} <= taken and not own & taken


def test_the_gpu_worker_knows_device_rank_and_runner() -> None:
    known = assigned(WORKER[0], "Worker") | assigned(WORKER[1], "WorkerBase")
    assert {"device", "local_rank", "model_runner"} <= known


@pytest.mark.parametrize("runner", RUNNERS)
def test_both_model_runners_have_model_and_configuration(runner: str) -> None:
    assert {"model", "vllm_config"} <= assigned(RUNNERS[runner], "GPUModelRunner")


def test_the_second_runner_is_chosen_by_the_variable_that_the_check_sets() -> None:
    assert "VLLM_USE_V2_MODEL_RUNNER" in source("envs.py")
    assert "use_v2_model_runner" in methods("config/vllm.py", "VllmConfig")
    assert "use_v2_model_runner" in source(WORKER[0])


def test_asynchronous_scheduling_is_a_field_that_false_turns_off() -> None:
    fields = {
        node.target.id: ast.unparse(node)
        for node in class_of("config/scheduler.py", "SchedulerConfig").body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert "bool | None" in fields["async_scheduling"]


def test_sleep_and_wake_up_free_by_tags_and_level_2_keeps_buffers() -> None:
    worker = methods(WORKER[0], "Worker")
    assert parameters(worker["sleep"]) == ["level"] and parameters(worker["wake_up"]) == ["tags"]
    assert "named_buffers" in ast.unparse(worker["sleep"]) and "named_buffers" in ast.unparse(worker["wake_up"])
    pool = source(WORKER[0])
    assert "'weights'" in pool.replace('"', "'") and "'kv_cache'" in pool.replace('"', "'")
    allocator = methods("device_allocator/cumem.py", "CuMemAllocator")
    assert parameters(allocator["sleep"]) == ["offload_tags"] and parameters(allocator["wake_up"]) == ["tags"]
    assert parameters(allocator["use_memory_pool"]) == ["tag"]


def test_the_engine_core_pauses_in_the_modes_that_servers_use() -> None:
    core = methods("v1/engine/core.py", "EngineCore")["pause_scheduler"]
    assert parameters(core) == ["mode", "clear_cache"]
    text = ast.unparse(core).replace('"', "'")
    assert all(f"'{mode}'" in text for mode in ("keep", "abort"))


def test_requests_are_salted_into_their_blocks() -> None:
    assert "cache_salt" in source("v1/core/kv_cache_utils.py") and "cache_salt" in source("v1/request.py")
