"""Tiny models with random weights of other families than the quick start's, with data that fits them."""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

from ..quickstart import tiny_model
from ..quickstart.model_and_data import Assets, write_rows
from ..quickstart.task import TaskShape

SHAPE = TaskShape(longest=20)
TRAIN_ROWS, VALIDATION_ROWS = 64, 8
START, END, PICTURE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}" + START + PICTURE + END + "{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
)
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
_VISION = {
    "depth": 2,
    "num_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "initializer_range": 0.25,
}


def ids_of(tokenizer: Any) -> dict[str, int]:
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    return {"vocab_size": len(tokenizer), **ids}


def qwen3_moe(tokenizer: Any) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**TEXT, **ids_of(tokenizer), **experts, head_dim=32, mlp_only_layers=[]))


def glm4_moe(tokenizer: Any) -> Any:
    """Its head that drafts is added to its folder by `add_head`."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    head = {"num_nextn_predict_layers": 1}
    model = Glm4MoeForCausalLM(Glm4MoeConfig(**TEXT, **ids_of(tokenizer), **experts, **head, head_dim=32))
    with torch.no_grad():  # the last token decides most, so that a head of one layer is often right
        for name, parameter in model.named_parameters():
            parameter *= 0.01 if "o_proj" in name or "down_proj" in name else 2.0 if "lm_head" in name else 1.0
    return model


def add_head(folder: Path) -> None:
    """A head that predicts the token after the next one, which transformers saves none of: the model's last layer, run
    on the next token's embedding.
    """
    file, size, layers = folder / "model.safetensors", TEXT["hidden_size"], TEXT["num_hidden_layers"]
    weights, last, own = load_file(file), f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    head = {name.replace(last, own): tensor.clone() for name, tensor in weights.items() if name.startswith(last)}
    head |= {f"{own}{name}.weight": torch.ones(size) for name in ("enorm", "hnorm", "shared_head.norm")}
    head[own + "eh_proj.weight"] = torch.cat([torch.eye(size), torch.zeros(size, size)], dim=1)
    head[own + "embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    head[own + "shared_head.head.weight"] = weights["lm_head.weight"].clone()
    save_file(weights | head, file, metadata={"format": "pt"})


def vision_language(name: str, tokenizer: Any, text: dict[str, Any], vision: dict[str, Any], rope: list[int]) -> Any:
    import transformers

    rope_of = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": rope, **text.pop("rope", {})}
    names = {"image_token_id": PICTURE, "video_token_id": VIDEO, "vision_start_token_id": START}
    config = getattr(transformers, f"{name}Config")(
        text_config=TEXT | ids_of(tokenizer) | {"rope_parameters": rope_of} | text,
        vision_config=_VISION | vision,
        tie_word_embeddings=False,
        dtype="float32",
        vision_end_token_id=tokenizer.convert_tokens_to_ids(END),
        **{key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()},
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def qwen2_5_vl(tokenizer: Any) -> Any:
    vision = {"window_size": 56, "fullatt_block_indexes": [1]}
    return vision_language("Qwen2_5_VL", tokenizer, {}, vision, [4, 6, 6])


def _tokenizer_with_pictures() -> Any:
    named = {"vision_start_token": START, "vision_end_token": END, "image_token": PICTURE, "video_token": VIDEO}
    tokenizer = tiny_model.build_tokenizer(named)
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _save_processor(name: str, tokenizer: Any, folder: Path) -> None:
    import transformers

    kind = "Qwen2_5_VL" if name == "qwen2_5_vl" else "Qwen3VL"
    sizes = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}
    images = transformers.Qwen2VLImageProcessor(patch_size=14, merge_size=2, temporal_patch_size=2, size=sizes)
    videos = transformers.Qwen2VLVideoProcessor if name == "qwen2_5_vl" else transformers.Qwen3VLVideoProcessor
    parts = {"image_processor": images, "video_processor": videos(patch_size=14), "tokenizer": tokenizer}
    getattr(transformers, f"{kind}Processor")(**parts, chat_template=_TEMPLATE).save_pretrained(folder)


def picture(number: int) -> bytes:
    """A PNG file of 56 x 56 pixels, four tokens."""
    image = Image.new("RGB", (56, 56), (number * 37 % 256, number * 91 % 256, number * 53 % 256))
    ImageDraw.Draw(image).ellipse((number % 20, number % 13, 30 + number % 20, 40), fill=(255, number * 7 % 256, 99))
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def write_pictures(file: Path, count: int, *, by_path: bool) -> None:
    """Prompts with one picture or two."""
    rows = []
    for number in range(count):
        images: list[Any] = []
        for shown in range(number, number + 1 + number % 2):
            path = file.with_name(f"{shown}.png")
            path.write_bytes(picture(shown))
            images.append(str(path) if by_path else {"bytes": picture(shown), "path": None})
        prompt = [{"role": "user", "content": "<image>" * len(images) + f"{number % 100:02d}"}]
        truth = {"style": "rule", "ground_truth": "1"}
        rows.append({"data_source": "shapes", "prompt": prompt, "images": images, "reward_model": truth})
    pq.write_table(pa.Table.from_pylist(rows), file)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A family."""

    make: Callable[[Any], Any]
    has_pictures: bool

    def write(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> Assets:
        """Model, tokenizer and data."""
        assets = Assets(folder=folder, shape=SHAPE)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = _tokenizer_with_pictures() if self.has_pictures else tiny_model.build_tokenizer()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = self.make(tokenizer).to(dtype).eval()
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(assets.model)
        if self.has_pictures:
            _save_processor(self.make.__name__, tokenizer, assets.model)
            write_pictures(assets.train_file, TRAIN_ROWS, by_path=False)
            write_pictures(assets.validation_file, VALIDATION_ROWS, by_path=True)
        else:
            write_rows(assets, seed=0, train=TRAIN_ROWS, validation=VALIDATION_ROWS)
        tokenizer.save_pretrained(assets.model)
        return assets
