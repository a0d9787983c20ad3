"""Which model a run trains, as its checkpoints note it. A resume has its weights, whatever model the options name."""

import json
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig

# Names of config.json's numbers that shapes of weights, or their number, follow from. Others change how the model is
# computed, or what tokens mean: of two models that differ in these only, one can go on with the other's weights.
_SHAPE = re.compile(r"(num|n)_.+|(.+_)?(size|dim|depth|heads|layers|experts|rank)")


class TrainedModel(msgspec.Struct, kw_only=True, frozen=True):
    """
    Attributes:
        path: of its folder, absolute if it is on this machine; else its name.
        architecture: a checksum of what the names and shapes of its weights follow from; empty where its config.json
            cannot be read.
    """

    path: str
    architecture: str

    @classmethod
    def of(cls, config: DictConfig) -> "TrainedModel":
        """The actor's."""
        model = config.actor_rollout_ref.model
        return cls(path=_place(model.path), architecture=_architecture(_place(model.hf_config_path or model.path)))


def _place(path: str) -> str:
    folder = Path(path).expanduser().absolute()
    return str(folder) if folder.exists() else path


def _architecture(path: str) -> str:
    from transformers import PreTrainedConfig  # seconds, for readers of checkpoints that need none of it

    try:
        content, _ = PreTrainedConfig.get_config_dict(path)
    except OSError:  # of whatever kind: the check of the model tells it
        return ""
    if not content:  # a folder without the file
        return ""
    return blake2b(json.dumps(_shapes(content), sort_keys=True).encode(), digest_size=8).hexdigest()


def _shapes(content: dict[str, Any]) -> dict[str, Any]:
    """Class, and numbers that are shapes, of the model and of its parts, such as the text's and the pictures'."""
    parts = {
        name: _shapes(part) for name, part in content.items() if name.endswith("_config") and isinstance(part, dict)
    }
    return parts | {
        name: value
        for name, value in content.items()
        if name in ("architectures", "model_type") or (isinstance(value, int) and _SHAPE.fullmatch(name))
    }
