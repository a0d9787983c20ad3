"""verl, TransferQueue, vLLM and Ray are what the recipe was written against; a version bump fails here, by name, and
`make bump-check` says all that has changed."""

import asyncio
import gc
import inspect
from types import SimpleNamespace

import pytest
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm import AsyncEngineArgs
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

from recipe.async_dapo.config.derived import server_calls
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.engines.server_actor import METHODS, ServerActor
from recipe.async_dapo.runtime import garbage
from recipe.async_dapo.startup.verl_options import OVERRIDDEN
from requirements import bump_check
from requirements.bump_check import named, signature_of
from requirements.upstream import SEAMS, SIGNATURES

from ..support.light_imports import HEAVY, assert_imports_without
from ..support.scripted_engine import ScriptedEngine
from ..support.simulation import simulate


@pytest.mark.parametrize("name", SEAMS)
def test_a_seam_that_everything_hangs_on_is_as_it_was(name: str) -> None:
    """`make bump-check` compares all that the recipe relies on."""
    assert signature_of(named(name)) == SIGNATURES[name]


def test_a_bump_names_what_is_gone_called_otherwise_or_changed_and_nothing_else(monkeypatch) -> None:
    function = "textwrap:dedent"
    monkeypatch.setattr(bump_check, "SIGNATURES", {function: "(text)", "textwrap:undent": "()", "json:dumps": "(obj)"})
    monkeypatch.setattr(bump_check, "READ", {function: "000000000000", "none.such:f": ""})
    lines = list(bump_check.differences())
    assert [line.split()[0] for line in lines] == ["textwrap:undent", "json:dumps", function, "none.such:f"]


def test_the_servers_actor_answers_every_call_that_the_server_does() -> None:
    called_in_its_own_process = {"run_server", "run_headless", "stamp", "answer"}
    public = {name for name, _ in inspect.getmembers(AsyncDAPOServer, inspect.isfunction) if not name.startswith("_")}
    assert set(METHODS) == public - called_in_its_own_process
    assert not [name for name in METHODS if not inspect.iscoroutinefunction(getattr(ServerActor, name))]


RECIPE, LAB = "recipe.async_dapo", "recipe.async_dapo_lab"
LIGHT = {
    "before a driver checks": (
        (*HEAVY, "matplotlib", "pandas", "ray"),
        (f"{RECIPE}.main_async_dapo", f"{LAB}.train", f"{LAB}.quickstart.__main__", f"{LAB}.rehearse"),
    ),
    # Ray loads the class of an actor by its module, also where a process gets its handle.
    "actors": (
        HEAVY,
        (
            f"{RECIPE}.engines.load_balancer",
            f"{RECIPE}.engines.server_actor",
            f"{RECIPE}.rollout.coordinator",
            f"{RECIPE}.training.task_runner",
            f"{LAB}.rehearsal.host_actor",
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("process", LIGHT)
def test_a_process_that_does_not_compute_imports_nothing_that_is_heavy(process: str) -> None:
    assert_imports_without(*LIGHT[process])


def test_a_process_of_a_run_collects_garbage_rarely_until_it_has_tensors() -> None:
    before = gc.get_threshold()
    try:
        garbage.collect_cycles_as_usual()
        usual = gc.get_threshold()
        garbage.collect_cycles_rarely()
        assert gc.get_threshold() > usual
        garbage.collect_cycles_as_usual()
        assert gc.get_threshold() == usual and gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("max_num_seqs", [1, 984, 985, 5000])
def test_start_up_knows_the_concurrent_calls_of_a_server_actor(max_num_seqs: int) -> None:
    replica = SimpleNamespace(config=SimpleNamespace(max_num_seqs=max_num_seqs))
    upstream = RolloutReplica.max_concurrency.fget(replica)
    assert upstream == server_calls(max_num_seqs)


def test_a_server_s_answer_has_no_field_that_the_recipe_does_not_fill() -> None:
    fields_we_fill = {"token_ids", "log_probs", "stop_reason", "num_preempted", "routed_experts", "extra_fields"}
    assert fields_we_fill == set(TokenOutput.model_fields)


# ---- vLLM ----


def test_asynchronous_scheduling_can_be_switched_off_by_verls_option() -> None:
    """As docs/troubleshooting.md says, and the check of GPUs does; verl makes command-line arguments of options."""
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    off = parser.parse_args(build_cli_args_from_config({"async_scheduling": False}))
    assert off.async_scheduling is False and parser.parse_args([]).async_scheduling is None


async def last_chunks(stream_interval: int, *, reads_s: float) -> list[CompletionOutput]:
    """A request that is aborted after 3 tokens, as its reader sees it."""
    engine = ScriptedEngine(9, stream_interval=stream_interval)
    params = SamplingParams(max_tokens=100, logprobs=0, flat_logprobs=True, output_kind=RequestOutputKind.DELTA)
    prompt = {"prompt_token_ids": [7], "cache_salt": ""}
    stream = engine.generate(prompt=prompt, sampling_params=params, request_id="request")

    async def read() -> list[CompletionOutput]:
        chunks = []
        async for chunk in stream:
            chunks.append(chunk.outputs[0])
            await asyncio.sleep(reads_s)
        return chunks

    reader = asyncio.create_task(read())
    await asyncio.sleep(3.5)
    await engine.abort("request")
    return await reader


def test_an_aborted_requests_empty_last_chunk_repeats_all_log_probs() -> None:
    """The reason for the slice in `stamping_engine._sampled_log_probs`: when this fails, vLLM has mended it."""
    *before, last = simulate(last_chunks(1, reads_s=0.0))
    assert [len(chunk.token_ids) for chunk in before] == [1, 1, 1]
    assert (len(last.token_ids), len(last.logprobs), last.finish_reason) == (0, 3, "abort")


def test_chunks_of_a_slow_reader_are_merged_with_the_repeated_log_probs_at_the_end() -> None:
    _, merged = simulate(last_chunks(1, reads_s=10.0))
    assert (len(merged.token_ids), len(merged.logprobs)) == (2, 5)


def test_verl_sets_what_is_said_to_be_overridden_before_the_arguments_of_the_user() -> None:
    source = inspect.getsource(vLLMHttpServer.launch_server)
    before_the_users = source[: source.index("**engine_kwargs")]
    set_elsewhere = {"data_parallel_size", "pipeline_parallel_size"}  # later, or not at all
    for name, option in OVERRIDDEN.items():
        if name not in set_elsewhere:
            assert f'"{name}": ' in before_the_users and f"self.config.{option}" in before_the_users, name
