"""Weights that are cast before they are sent: what ranks gather, and what parameters of vLLM's models have then."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from verl.workers.engine_workers import ActorRolloutRefWorker
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

from recipe.async_dapo.config.extensions import load
from recipe.async_dapo.extensions.wire_type.both_ends import send_as, types_in_engine
from recipe.async_dapo.extensions.wire_type.choice import WireChoice
from recipe.async_dapo.extensions.wire_type.wire_type import WireType, end_of, types_of
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker
from recipe.async_dapo.weights.stream import NamedTensor, unchanged
from recipe.async_dapo_lab.gpu_check.families import TinyModel, glm4_moe

from ....support.composed_runs import CPU_WORKER, compose_run, valid_overrides, write_files
from ....support.families import qwen3_5
from ....support.ranks import run_ranks
from ....support.simulated_options import options

RANKS = 2
BF16 = torch.bfloat16


def test_engines_are_asked_for_their_types_and_training_workers_told_of_them_within_the_time_of_an_update(monkeypatch):
    asked: list[Any] = []
    waited: list[tuple[Any, float]] = []

    def call_extension(name: str, place: str, *args: Any) -> list[Any]:
        asked.append((load(name, place), *args))
        return [("bfloat16", [])]

    monkeypatch.setattr(ray, "get", lambda answers, timeout: waited.append((answers, timeout)))
    workers: Any = SimpleNamespace(call_extension=call_extension)
    engines: Any = SimpleNamespace(call_extension=call_extension, actor_wg=workers)
    run = options()
    WireChoice(run).engines_started(engines)
    assert asked == [(types_in_engine,), (send_as, [("bfloat16", [])])]
    assert waited == [([("bfloat16", [])], run.weight_update_timeout_s)]


@torch.no_grad()
def check_what_ranks_gather(files: Path) -> None:
    config = compose_run([*valid_overrides(files), "actor_rollout_ref.model.use_remove_padding=False", *CPU_WORKER])
    worker = AsyncDAPOActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    ActorRolloutRefWorker.init_model(worker)
    worker.rollout = None
    engine, gathered = worker.actor.engine, []
    full_tensor = DTensor.full_tensor

    def gather(shard: DTensor) -> torch.Tensor:
        gathered.append(shard.dtype)
        return full_tensor(shard)

    DTensor.full_tensor = gather
    as_held = dict(engine.get_per_tensor_param()[0])
    assert set(gathered) == {torch.float32} and len(as_held) > 10
    for kept, types in ([], {BF16}), (["norm.weight"], {torch.float32}):
        send_as(worker, [("bfloat16", kept)])
        gathered.clear()
        sent = dict(worker.as_sent(engine.get_per_tensor_param()[0]))
        assert set(gathered) == types, "cast after it was gathered, or although some must not be"
        assert {name.endswith("norm.weight") for name, one in sent.items() if one.dtype is torch.float32} <= {True}
        assert all(torch.equal(sent[name], one.to(sent[name].dtype)) for name, one in as_held.items())
    worker.as_sent = unchanged
    send_as(worker, [("bfloat16", ["experts.router_bias"])])  # the trainer knows no such name
    assert worker.as_sent is unchanged


@pytest.mark.slow
def test_given_two_ranks_when_all_may_be_cast_then_shards_are_cast_before_they_are_gathered(tmp_path) -> None:
    write_files(tmp_path)
    run_ranks(check_what_ranks_gather, tmp_path, ranks=RANKS)


FAMILIES: dict[str, tuple[Callable[[Any], Any], bool, list[str]]] = {
    "a router with a bias": (glm4_moe, False, ["gate.e_score_correction_bias", "gate.weight"]),
    "linear attention": (qwen3_5, True, ["linear_attn.A_log"]),
}


def engine_of(model: Path, meeting: str) -> torch.nn.Module:
    """vLLM's model, without weights."""
    config = EngineArgs(model=str(model), dtype="bfloat16", max_model_len=64, enforce_eager=True).create_engine_config()
    with set_current_vllm_config(config), set_default_torch_dtype(BF16):
        init_distributed_environment(1, 0, meeting, 0, "gloo")
        initialize_model_parallel()
        return initialize_model(config)


def loaded(engine: torch.nn.Module, weights: Iterable[NamedTensor]) -> dict[str, bytes]:
    """The bits of its parameters, once it has loaded a stream."""
    for parameter in engine.parameters():
        parameter.data.zero_()
    engine.load_weights(iter(weights))
    return {name: one.data.view(torch.uint8).numpy().tobytes() for name, one in engine.named_parameters()}


def check_engine(folder: Path) -> None:
    make, has_pictures, wide = FAMILIES[Path(folder, "family").read_text()]
    model = TinyModel(make=make, has_pictures=has_pictures).write(folder / "made").model
    weights = {name: torch.randn_like(one) for name, one in load_file(model / "model.safetensors").items()}
    engine = engine_of(model, f"file://{folder}/vllm")
    types = types_of([engine], BF16)
    assert types == ("bfloat16", wide)
    wire = WireType.agreed([types], weights)
    assert wire is not None
    sent = list(wire.cast(weights.items()))
    assert sum(one.nbytes for _, one in sent) < 0.51 * sum(one.nbytes for one in weights.values())
    as_held = loaded(engine, weights.items())
    assert sum(map(any, as_held.values())) > 10
    assert _others(as_held, loaded(engine, sent)) == set()
    all_cast = loaded(engine, WireType(dtype=BF16).cast(weights.items()))
    assert {end_of(name) for name in _others(as_held, all_cast)} == set(wide), "keeping them was for nothing"


def _others(one: dict[str, bytes], other: dict[str, bytes]) -> set[str]:
    return {name for name, bits in one.items() if bits != other[name]}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_given_a_bf16_engine_when_weights_are_cast_before_they_are_sent_then_its_parameters_have_the_same_bits(
    family, tmp_path
) -> None:
    Path(tmp_path, "family").write_text(family)
    run_ranks(check_engine, tmp_path)
