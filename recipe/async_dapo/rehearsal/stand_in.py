"""A tokenizer, a model's config.json and prompts for a rehearsal on a machine that has none of them."""

import json
import random
from pathlib import Path

from ..cpu.tiny_model import build_tokenizer
from ..plan.model_shape import PRESETS

MODEL = "qwen3-8b"
POSITIONS = 131_072
TRAIN_ROWS, VALIDATION_ROWS = 8192, 16
PROMPT_TOK = 200  # about; the tokenizer has a token a character


def make_stand_in(folder: Path) -> None:
    """Write `model/`, `train.parquet` and `validation.parquet`; what is there already is kept."""
    import pyarrow
    import pyarrow.parquet

    if (folder / "validation.parquet").exists():
        return
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(model)
    about = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "max_position_embeddings": POSITIONS,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    (model / "config.json").write_text(json.dumps(PRESETS[MODEL] | about, indent=2) + "\n")
    for name, count in (("train", TRAIN_ROWS), ("validation", VALIDATION_ROWS)):
        rng = random.Random(name)
        rows = [_row(number, rng) for number in range(count)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")


def _row(number: int, rng: random.Random) -> dict[str, object]:
    words = " ".join(str(rng.randrange(10_000)) for _ in range(PROMPT_TOK // 5))
    return {
        "data_source": "rehearsal",
        "prompt": [{"role": "user", "content": f"{number}: {words}"[: PROMPT_TOK - 20]}],
        "ability": "none",
        "reward_model": {"style": "rule", "ground_truth": "1"},
        "extra_info": {"index": number},
    }
