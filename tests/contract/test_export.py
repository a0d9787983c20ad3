"""A checkpoint of verl's becomes a model that transformers and vLLM load, with the weights that were trained."""

import json
import os
import subprocess
from pathlib import Path

import peft
import pytest
import torch
from omegaconf import OmegaConf
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.distributed import initialize_global_process_group_ray

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.record.checkpoint_folder import read_complete, saving
from recipe.async_dapo.record.trained_model import TrainedModel
from recipe.async_dapo_lab import export as export_module
from recipe.async_dapo_lab.evaluate.ask import MARK, Question
from recipe.async_dapo_lab.export import Adapter, export
from recipe.async_dapo_lab.quickstart.activation import cpu_environment
from recipe.async_dapo_lab.quickstart.tiny_model import build_model, build_tokenizer

from ..support.fork_server import executable
from ..support.ranks import run_ranks
from ..support.recorded_runs import write_recipe_run

ROOT = Path(__file__).parents[2]
STEP = 8
PROMPT = "47+4*03"


def model_of(base: Path, *, adapter: bool) -> torch.nn.Module:
    """With weights that are far from those that it began with."""
    model: torch.nn.Module = Qwen3ForCausalLM.from_pretrained(base)
    torch.manual_seed(1)
    if adapter:
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def save_as_verl(folder: Path, *, adapter: bool, only: bool = False) -> None:
    """In each training rank."""
    initialize_global_process_group_ray()
    base = folder / "base"
    model = model_of(base, adapter=adapter)
    # Named as verl names its mesh, which the merger reads.
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",)))
    contents = {"save_contents": ["model"], "load_contents": ["model"], "save_lora_only": only}
    manager = FSDPCheckpointManager(
        model, processing_class=AutoTokenizer.from_pretrained(base), checkpoint_config=OmegaConf.create(contents)
    )
    manager.save_checkpoint(str(folder / f"global_step_{STEP}" / "actor"), global_step=STEP)


def trained(folder: Path, *, ranks: int, adapter: bool = False, only: bool = False) -> Path:
    """The folder of a run that has a checkpoint, and its record."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "base")
    build_model(tokenizer, seed=0).save_pretrained(folder / "base")
    write_recipe_run(folder)
    model = TrainedModel(path=str(folder / "base"), architecture={})
    with saving(folder / f"global_step_{STEP}", [b"pool"], model=model):
        run_ranks(lambda where: save_as_verl(where, adapter=adapter, only=only), folder, ranks=ranks)
    return folder


def logits(model: torch.nn.Module, tokenizer_folder: Path) -> torch.Tensor:
    tokens = AutoTokenizer.from_pretrained(tokenizer_folder)(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        found: torch.Tensor = model.eval()(tokens).logits
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "adapter", "only"), [(1, False, False), (2, False, False), (1, True, True), (2, True, False)]
)
def test_given_shards_when_exported_then_transformers_loads_what_was_trained(tmp_path, ranks, adapter, only):
    run = trained(tmp_path / "run", ranks=ranks, adapter=adapter, only=only)
    model_folder = export(run, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    expected = logits(model_of(run / "base", adapter=adapter), run / "base")
    rounded = (logits(loaded, model_folder) - expected).abs().max()
    unlike = (logits(Qwen3ForCausalLM.from_pretrained(run / "base"), run / "base") - expected).abs().max()
    assert rounded < 0.05 < 0.3 < unlike, "bfloat16 rounds, and training had moved the weights"
    template = AutoTokenizer.from_pretrained(run / "base").chat_template
    assert AutoTokenizer.from_pretrained(model_folder).chat_template == template
    assert json.loads((model_folder / "generation_config.json").read_text())["eos_token_id"] is not None
    card = (model_folder / "README.md").read_text()
    assert f"# Step {STEP} of math/partial" in card and f"| {STEP} (this model) | 0.4 |" in card
    weights, beside = ((model_folder / name).stat().st_mode for name in ("model.safetensors", "README.md"))
    assert weights == beside, "whoever may read the one may read the other"
    assert not list(tmp_path.glob("*.part-*"))


@pytest.mark.slow
def test_given_an_adapter_when_exported_alone_then_its_base_and_it_are_the_trained_model(tmp_path):
    run = trained(tmp_path / "run", ranks=2, adapter=True)
    folder = export(run, tmp_path / "adapter", lora=Adapter.APART)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 16) and not (folder / "config.json").exists()
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"])
    loaded = peft.PeftModel.from_pretrained(base, str(folder))
    expected = logits(model_of(run / "base", adapter=True), run / "base")
    assert (logits(loaded, folder) - expected).abs().max() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "adapter"), [pytest.param(1, False, marks=pytest.mark.nightly), (2, True)])
def test_given_an_exported_model_when_vllm_loads_it_then_it_answers_as_transformers_does(tmp_path, ranks, adapter):
    model_folder = export(trained(tmp_path / "run", ranks=ranks, adapter=adapter), tmp_path / "model")
    question = Question(
        text=PROMPT,
        engine={
            "model": str(model_folder),
            "dtype": "float32",
            "max_model_len": 64,
            "enforce_eager": True,
            "gpu_memory_utilization": 0.1,  # others use this machine, too
        },
        sampling={"temperature": 0.0, "max_tokens": 16, "min_tokens": 16},
    )
    done = subprocess.run(
        [executable(), "-m", Question.__module__],
        input=question.to_json(),
        cwd=ROOT,
        env=cpu_environment(os.environ, code_path=ROOT),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-12000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    tokens = model.generate(**prompt, do_sample=False, min_new_tokens=16, max_new_tokens=16)
    answer = tokenizer.decode(tokens[0, prompt.input_ids.shape[1] :], skip_special_tokens=True)
    assert json.loads(line.removeprefix(MARK)) == [answer]


def test_given_a_folder_that_is_there_or_a_checkpoint_of_megatron_when_exported_then_it_says_what_to_do(tmp_path):
    with saving(tmp_path / "run" / "global_step_3", [b"pool"]):
        (tmp_path / "run" / "global_step_3" / "actor" / "model" / "dist_ckpt").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"verl.model_merger merge --backend megatron --local_dir .*global_step_3"):
        export(tmp_path / "run", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"no complete checkpoint of step 4 \(steps found: 3\)"):
        export(tmp_path / "run", tmp_path / "model", step=4)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    with pytest.raises(ConfigError, match="exists already; name another folder"):
        export(tmp_path / "run", tmp_path / "model")
    with pytest.raises(SystemExit, match=r"async_dapo: RUN_DIR=.*base: no such folder"):
        export_module.main([str(tmp_path / "base"), "--output", str(tmp_path / "other")])


def test_given_a_damaged_checkpoint_when_the_newest_is_asked_for_then_the_one_before_it_is_taken(tmp_path):
    for step in (3, 6):
        with saving(tmp_path / f"global_step_{step}", [b"pool"]):
            (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    (tmp_path / "global_step_6" / "async_dapo_pool.msgpack").write_bytes(b"")
    found = export_module.SavedRun.at(tmp_path).checkpoint()
    assert read_complete(found).step == 3
