"""What is checked with: on a CPU the quick start's model and task; on a GPU a Qwen3 with heads of real size, made here.

Random weights answer nothing, so that on a GPU the reward is a hash of the answer (`reward.py`).
"""

from pathlib import Path
from typing import Any

from ..plan.hardware import MODEL_PRESETS
from ..quickstart.model_and_data import Assets, prepare_assets, write_rows

SMALL = {  # four layers of Qwen3-0.6B: its heads, and its ratio of KV heads, are those of Qwen3-8B
    **MODEL_PRESETS["qwen3-0.6b"],
    "num_hidden_layers": 4,
    "tie_word_embeddings": False,
}
LARGE = MODEL_PRESETS["qwen3-8b"]  # of which only config.json is made: the engine makes weights up
_MOST_POSITIONS = 40_960


def prepare(output: Path, *, device: str, seed: int = 0, shape: dict[str, Any] = SMALL) -> Assets:
    """Model and data, made once; those of a CPU lie beside the output, for the next run as well."""
    if device == "cpu":
        return prepare_assets(output.parent, seed=seed)
    assets = Assets(folder=output / "made_here")
    if not assets.validation_file.exists():
        make_model(assets.model, seed=seed, shape=shape)
        write_rows(assets, seed=seed, train=1024, validation=64)
    return assets


def prepare_family(name: str, output: Path, *, device: str) -> Assets:
    """A tiny model with experts, one that sees images, or one whose own head drafts, and data for it; over those of an
    earlier run.
    """
    import torch

    from .families import TinyModel, add_head, glm4_moe, qwen2_5_vl, qwen3_moe

    make = {"experts": qwen3_moe, "images": qwen2_5_vl, "own head": glm4_moe}[name]
    family = TinyModel(make=make, has_pictures=name == "images")
    assets = family.write(output / "made_here", dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    if name == "own head":
        add_head(assets.model)
    return assets


def make_model(folder: Path, *, seed: int, shape: dict[str, Any] = SMALL) -> Path:
    """A Qwen3 with random weights in bf16, and the quick start's tokenizer, whose vocabulary it has."""
    import torch
    from transformers import Qwen3ForCausalLM

    tokenizer = _save_tokenizer(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(_config(tokenizer, shape | {"vocab_size": len(tokenizer)}))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def make_config(folder: Path, *, shape: dict[str, Any] = LARGE) -> Path:
    """A model's folder without weights, for an engine with `load_format=dummy`."""
    _config(_save_tokenizer(folder), shape).save_pretrained(folder)
    return folder


def _save_tokenizer(folder: Path) -> Any:
    from ..quickstart.tiny_model import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    return tokenizer


def _config(tokenizer: Any, shape: dict[str, Any]) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        **shape,
        max_position_embeddings=_MOST_POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )
