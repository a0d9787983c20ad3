"""The lab's check says what does not fit on the same GPUs."""

import json
import re
import shutil
from functools import partial
from types import SimpleNamespace

import pytest

from recipe.async_dapo_lab.check import in_words
from recipe.async_dapo_lab.plan.hardware import MODEL_PRESETS as PRESETS
from recipe.async_dapo_lab.plan.hardware import load_model
from recipe.async_dapo_lab.plan.trainer_memory import pinned_bytes

AWAKE = "actor_rollout_ref.rollout.free_cache_engine=False"
OFFLOADED = [f"actor_rollout_ref.actor.fsdp_config.{part}_offload=True" for part in ("param", "optimizer")]
FULL = "actor_rollout_ref.rollout.gpu_memory_utilization=0.85"


@pytest.fixture(scope="module")
def qwen3_8b(files, tmp_path_factory):
    """A folder with the tokenizer of the valid run's model, and no weights."""
    folder = shutil.copytree(files / "model", tmp_path_factory.mktemp("qwen3-8b") / "model")
    tiny = json.loads((folder / "config.json").read_text())
    del tiny["layer_types"]
    (folder / "config.json").write_text(json.dumps(tiny | PRESETS["qwen3-8b"]))
    return folder


@pytest.fixture
def on_gpus(run, qwen3_8b):
    def compose(*overrides):
        gpus = ("trainer.device=cuda", "trainer.n_gpus_per_node=8")
        return run(*gpus, f"actor_rollout_ref.model.path={qwen3_8b}", *overrides)

    return compose


@pytest.fixture
def an_80_gb_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    gpu = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=80e9)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: gpu)


def room_tok(config) -> int:
    return int(re.search(r"room for ([\d,]+) tokens", in_words(config))[1].replace(",", ""))


def test_given_an_fp8_cache_or_copies_of_a_model_then_an_engine_s_room_counts_them(on_gpus, an_80_gb_gpu):
    vllm, parallel = "++actor_rollout_ref.rollout.engine_kwargs.vllm", "actor_rollout_ref.rollout.data_parallel_size=2"
    one = room_tok(on_gpus())
    assert room_tok(on_gpus(f"{vllm}.kv_cache_dtype=fp8")) == pytest.approx(2 * one, abs=2)
    assert room_tok(on_gpus(parallel)) == 2 * one


ALONE = ("trainer.n_gpus_per_node=1", *OFFLOADED)
LONG = ("data.max_response_length=40000", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1")
LESS = "actor_rollout_ref.rollout.gpu_memory_utilization=0.7"
ON_HOST = ("actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.fsdp_config.offload_policy=True")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([FULL, AWAKE, *OFFLOADED], ["take 16.4 GB", "16.4 GB stay", "set at most 0.7"]),
        ([FULL], ["12.3 GB stay", *OFFLOADED]),  # an optimizer that stays while engines generate
        (ALONE, ["gradients and optimizer take 131.0 GB, a micro", "use more GPUs, or actor"]),
        ([*LONG, LESS, AWAKE], ["a micro batch about 41"]),
        ([LESS, AWAKE], []),
        ([FULL, *OFFLOADED], []),
        ([*ALONE, *ON_HOST], []),
        ([FULL, "actor_rollout_ref.actor.strategy=torchtitan"], []),
    ],
)
def test_the_run_in_words_says_what_the_trainer_takes_and_whether_engines_fit_beside_it(
    on_gpus, an_80_gb_gpu, overrides, words
):
    config = on_gpus(*overrides)
    said = in_words(config)
    assert ("do not fit beside it" in said) == bool(words)
    assert all(word in said for word in words), said


STALE_KV = ("async_dapo.rollout_strategy=partial_stale_kv", "async_dapo.host_kv_gib=40")


@pytest.mark.parametrize(
    ("overrides", "gb"),
    [
        (OFFLOADED, 131),  # of docs/cluster.md; the values alone are 98
        (OFFLOADED[:1], 44),
        ([*OFFLOADED, *STALE_KV], 474),  # 343.6 of them KV
        ([*ON_HOST], 174),  # with gradients
        ([*OFFLOADED, "actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16"], 65),
        ([], None),
    ],
)
def test_the_host_of_a_node_holds_what_is_offloaded_in_powers_of_two(on_gpus, an_80_gb_gpu, monkeypatch, overrides, gb):
    """Of 8B parameters on 8 GPUs."""
    for here_gb, is_short in ((2000, False), ((gb or 2) - 1, True)):
        monkeypatch.setattr("psutil.virtual_memory", partial(SimpleNamespace, total=1e9 * here_gb))
        said = in_words(on_gpus(*overrides))
        assert (found[1] if (found := re.search(r"host memory holds (\d+) GB", said)) else None) == (gb and str(gb))
        assert ("use more nodes" in said) == bool(is_short and gb)


def test_a_model_with_experts_or_with_unknown_tensors_holds_at_least_its_values():
    for name, config in PRESETS.items():
        model = load_model(name)
        pinned = pinned_bytes(config, parameters=model.parameters, shards=8, value_bytes=4)
        values = 4 * model.parameters / 8
        assert values <= pinned <= 2 * values
