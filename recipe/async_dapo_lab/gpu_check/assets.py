"""What is checked with: on a CPU the quick start's model and task; on a GPU a Qwen3 with heads of real size, made here.

Random weights answer nothing, so that on a GPU the reward is a hash of the answer (`reward.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...async_dapo.hardware import MODEL_PRESETS
from ..quickstart.model_and_data import Assets, prepare_assets
from ..quickstart.task import dataset_rows

SMALL = {  # four layers of Qwen3-0.6B: its heads, and its ratio of KV heads, are those of Qwen3-8B
    **MODEL_PRESETS["qwen3-0.6b"],
    "num_hidden_layers": 4,
    "tie_word_embeddings": False,
}
LARGE = MODEL_PRESETS["qwen3-8b"]  # of which only config.json is made: the engine makes weights up
TRAIN_ROWS, VALIDATION_ROWS = 1024, 64
_MOST_POSITIONS = 40_960


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model that is checked, and its data."""

    model: Path
    train_file: Path
    validation_file: Path
    quick_start: Assets | None = None  # on a CPU


def prepare(folder: Path, *, device: str, model: Path | None, seed: int = 0) -> Subject:
    """
    Args:
        folder: that of the output; models and data lie beside it, for the next run as well.
        model: one's own; None = make one.
    """
    if device == "cpu":
        assets = prepare_assets(folder.parent, seed=seed)
        return Subject(
            model=model or assets.model,
            train_file=assets.train_file,
            validation_file=assets.validation_file,
            quick_start=assets,
        )
    files = {name: folder / f"{name}.parquet" for name in ("train", "validation")}
    _write_data(files["train"], TRAIN_ROWS, seed=seed, held_out=False)
    _write_data(files["validation"], VALIDATION_ROWS, seed=seed, held_out=True)
    return Subject(
        model=model or make_model(folder / "model", seed=seed),
        train_file=files["train"],
        validation_file=files["validation"],
    )


def _write_data(file: Path, count: int, *, seed: int, held_out: bool) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(list(dataset_rows(count, seed=seed, held_out=held_out))), file
    )


def make_model(folder: Path, *, seed: int, shape: dict[str, Any] = SMALL) -> Path:
    """A Qwen3 with random weights in bf16, and the quick start's tokenizer, whose vocabulary it has."""
    import torch
    from transformers import Qwen3ForCausalLM

    tokenizer_size = _save_tokenizer(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(_config(folder, shape | {"vocab_size": tokenizer_size}))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def make_config(folder: Path, *, shape: dict[str, Any] = LARGE) -> Path:
    """A model's folder without weights, for an engine with `load_format=dummy`."""
    _save_tokenizer(folder)
    _config(folder, shape).save_pretrained(folder)
    return folder


def _save_tokenizer(folder: Path) -> int:
    from ..quickstart.tiny_model import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def _config(folder: Path, shape: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer, Qwen3Config

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Qwen3Config(
        **shape,
        max_position_embeddings=_MOST_POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )
