"""What the recipe touches of vLLM's code for GPUs, which no CPU runs: read from the sources that are installed.

The CPU build brings them along. VLLM_SOURCES names another folder: `make test-gpu-sources` reads the wheel for GPUs of
vLLM 0.24.0.
"""

import ast
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from recipe.async_dapo.config.values import SUFFIX_PACKAGE
from recipe.async_dapo.weights.stream import WeightReceiver

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


def test_the_workers_extension_has_no_name_that_the_gpu_worker_has() -> None:
    """vLLM refuses to start an engine whose worker and extension share one."""
    taken = {*methods(WORKER[0], "Worker"), *methods(WORKER[1], "WorkerBase")}
    own = {name for name in dir(WeightReceiver) if not name.startswith("__")}
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


def test_an_engine_says_how_many_tokens_fit_where_groups_of_layers_have_blocks_of_their_own() -> None:
    """The load meter asks for it, and falls back to blocks where an older vLLM does not say."""
    assert "kv_cache_groups" in source("v1/kv_cache_interface.py")
    assert "kv_cache_size_tokens" in source("config/cache.py") and "kv_cache_size_tokens" in source("v1/engine/core.py")


def test_requests_are_salted_into_their_blocks() -> None:
    assert "cache_salt" in source("v1/core/kv_cache_utils.py") and "cache_salt" in source("v1/request.py")


def test_the_connector_of_kv_in_host_memory_asks_of_its_parents_what_they_have() -> None:
    manager, name = "v1/simple_kv_offload/manager.py", "SimpleCPUOffloadScheduler"
    known = methods(manager, name)
    names = ("request_finished_all_groups", "prepare_store_specs")
    assert [parameters(known[one]) for one in names] == [["request", "block_ids"], ["scheduler_output"]]
    assert parameters(known["__init__"]) == [
        "vllm_config", "kv_cache_config", "cpu_capacity_bytes", "scheduler_block_size", "hash_block_size",
        "lazy_offload",
    ]  # fmt: skip
    used = {"block_size", "cp_world_size", "cpu_kv_cache_config", "cpu_block_pool", "cpu_coordinator"}
    assert used | {"_gpu_block_pool"} <= assigned(manager, name)
    assert "has_pending_stores" in known
    connector = source("distributed/kv_transfer/kv_connector/v1/simple_cpu_offload_connector.py")
    assert "return self.scheduler_manager.has_pending_stores()" in connector and "cpu_bytes_to_use" in connector
    # The scheduler keeps the engine stepping, asks before it frees, and an engine that is to sleep waits.
    scheduler = methods("v1/core/sched/scheduler.py", "Scheduler")
    assert "self.connector.has_pending_push_work()" in ast.unparse(scheduler["has_requests"])
    freed = ast.unparse(scheduler["_free_request"])
    assert freed.index("self._connector_finished") < freed.index("self._free_blocks")
    assert "not self.has_work()" in ast.unparse(methods("v1/engine/core.py", "EngineCoreProc")["_pause_complete"])
    assert "num_output_placeholders" in source("v1/request.py") and "kv_connector_module_path" in source(
        "config/kv_transfer.py"
    )


def literals(file: str, name: str) -> set[str]:
    """What a `Literal[...]` of a module names, other literals left out."""
    assigned_to = {
        target.id: node.value
        for node in ast.parse(source(file)).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    constants = (node.value for node in ast.walk(assigned_to[name]) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def test_sources_of_drafts_without_weights_and_what_start_up_reads_of_the_others() -> None:
    methods_of_drafts = literals("config/speculative.py", "SpeculativeMethod")
    assert {"ngram", "suffix", "custom_class"} <= methods_of_drafts and {"medusa", "draft_model"} <= methods_of_drafts
    assert literals("config/speculative.py", "NgramGPUTypes") == {"ngram_gpu"}
    config = ast.unparse(class_of("config/speculative.py", "SpeculativeConfig"))
    for field in ("num_speculative_tokens: int", "draft_load_config: LoadConfig | None", "rejection_sample_method: "):
        assert field in config
    assert "synthetic" in literals("config/speculative.py", "RejectionSampleMethod")
    assert "load_config=self.speculative_config.draft_load_config" in source("v1/spec_decode/llm_base_proposer.py")


def test_the_models_own_head_shares_what_is_sent_and_the_second_runner_loads_it_as_it_loads_the_model() -> None:
    assert "mtp" in literals("config/speculative.py", "MTPModelTypes")
    shares = source("v1/spec_decode/llm_base_proposer.py")
    assert "embed_tokens = target_embed_tokens" in shares and "lm_head = target_language_model.lm_head" in shares
    second = source("v1/worker/gpu/spec_decode/eagle/utils.py")
    assert "embed_tokens = target_embed" in second and "lm_head = target_lm_head" in second
    assert "load_config" not in second, "draft_load_config would do; rollout.load_format need not be auto"
    assert "self.drafter" not in source(RUNNERS["second"])  # verl sends the head nothing


def test_suffix_decoding_is_the_first_runners_and_asks_for_the_package_that_is_named() -> None:
    """Such drafts take the first runner and leave asynchronous scheduling out."""
    assert "SuffixDecodingProposer" in source(RUNNERS["first"]) and "SuffixDecoding" not in source(RUNNERS["second"])
    unsupported = methods("config/vllm.py", "VllmConfig")["_get_v2_model_runner_unsupported_features"]
    assert "speculative" in ast.unparse(unsupported)
    assert SUFFIX_PACKAGE in source("config/speculative.py")
    assert SUFFIX_PACKAGE in (Path(__file__).parents[2] / "requirements" / "drafts.txt").read_text().splitlines()


def test_a_sequence_near_the_limit_takes_the_drafts_of_its_whole_batch() -> None:
    assert "effective_drafter_max_model_len" in assigned(RUNNERS["first"], "GPUModelRunner")
    assert "<= self.effective_drafter_max_model_len" in source(RUNNERS["first"])


def test_scales_of_an_fp8_cache_are_1_after_every_sleep_whatever_they_were() -> None:
    """The first runner sets them; under the second they are the buffers that sleep keeps."""
    waking = methods(RUNNERS["first"], "GPUModelRunner")
    assert "init_fp8_kv_scales" in ast.unparse(waking["post_kv_cache_wake_up"])
    assert "(1.0, 1.0)" in ast.unparse(waking["init_fp8_kv_scales"])
    attention = source("model_executor/layers/attention/attention.py")
    assert 'register_buffer("_k_scale", torch.tensor(1.0' in attention
    assert "post_kv_cache_wake_up" in ast.unparse(methods(WORKER[0], "Worker")["wake_up"])


def test_scales_are_calculated_at_the_first_forward_pass_and_never_again() -> None:
    layer = methods("model_executor/layers/attention/attention.py", "Attention")
    assert "self.calculate_kv_scales = False" in ast.unparse(layer["calc_kv_scales"])


def test_a_block_of_an_fp8_cache_takes_half_the_memory_so_an_engine_reports_twice_the_room() -> None:
    import torch
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    page = {
        name: FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype=dtype).page_size_bytes
        for name, dtype in (("bfloat16", torch.bfloat16), ("fp8", STR_DTYPE_TO_TORCH_DTYPE["fp8"]))
    }
    assert page["bfloat16"] == 2 * page["fp8"]
