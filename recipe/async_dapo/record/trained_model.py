"""Which model a run trains, as its checkpoints note it. A resume has its weights, whatever model the options name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig

# Values of a config.json that change nothing of what a model computes of its tokens: what wrote it, where and in which
# type, how it is trained and sampled from, and how long its texts may be. All others are compared.
_OF_NO_ACCOUNT = re.compile(
    r"_.*|.*_version|(torch_)?dtype|use_cache|auto_map|tokenizer_class|.*_token_ids?|max_(position_embeddings|length)"
    r"|.*(drop|init).*|(output|return|tie)_.*|.*(aux|z)_loss.*|.*_implementation|pretraining_tp|gradient_checkpointing"
)
# Of these, by the last part of the name: with another value the weights do not fit, or compute something else. Of the
# others some are derived when a model is loaded, and stand in what is saved of it again, or are read by nothing.
_DECIDES = re.compile(
    r"model_type|architectures|depth|head_dim|(vocab|(moe_)?intermediate|hidden)_size|num_(hidden_layers|experts)"
    r"|num_(attention|key_value)_heads|n_routed_experts|hidden_act(ivation)?|.*_eps(ilon)?|rope_(theta|type)|.*_base_freq"
    r"|(.*_)?factor"
)
_ROTATIONS = ("rope_scaling", "rope_parameters")  # their names before transformers 5, and since
_OLDER_NAMES = {"type": "rope_type"}
_OLDER_KINDS = {"mrope": "default", "su": "longrope"}  # of rotations


class TrainedModel(msgspec.Struct, kw_only=True, frozen=True):
    """
    Attributes:
        path: of its folder, absolute if it is on this machine; else its name.
        architecture: what the names and shapes of its weights follow from, and what is computed with them, by dotted
            name in its config.json, rotations as transformers 4 has them, and null for infinity, which a note cannot
            hold; empty where that cannot be read.
    """

    path: str
    architecture: dict[str, Any]

    def differs_in(self, other: "TrainedModel") -> list[str]:
        """The values that both name, and not as the same: first those that `decides`. A model that was saved again, by
        another version of transformers, names more values than before, or fewer.
        """
        both = self.architecture.keys() & other.architecture.keys()
        mine, others = ({name: _older_type(name, one.architecture[name]) for name in both} for one in (self, other))
        return sorted((name for name in both if mine[name] != others[name]), key=lambda name: (not decides(name), name))

    @classmethod
    def of(cls, config: DictConfig) -> "TrainedModel":
        """The actor's."""
        model = config.actor_rollout_ref.model
        return cls(path=_place(model.path), architecture=architecture_at(_place(model.hf_config_path or model.path)))


def decides(name: str) -> bool:
    """Whether weights of a model with another such value do not fit, or compute something else."""
    return _DECIDES.fullmatch(name.rpartition(".")[2]) is not None


def _older_type(name: str, value: Any) -> Any:
    """Since transformers 5, types of parts that see have an ending: `qwen3_vl_vision`."""
    return value.removesuffix("_vision") if name.endswith("model_type") and isinstance(value, str) else value


def _place(path: str) -> str:
    folder = Path(path).expanduser().absolute()
    return str(folder) if folder.exists() else path


def architecture_at(path: str) -> dict[str, Any]:
    """As `TrainedModel.architecture`, of the config.json in a folder or on the hub."""
    from transformers import PreTrainedConfig  # seconds, for readers of checkpoints that need none of it

    try:
        content, _ = PreTrainedConfig.get_config_dict(path)
    except OSError:  # of whatever kind: the check of the model tells it
        return {}
    noted: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(_compared(content))))
    return noted


def _compared(content: dict[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Of the model and of its parts, such as the text's and the pictures'. What is null is not named."""
    for name, value in content.items():
        if isinstance(value, dict):
            if name.endswith("_config"):
                yield from _compared(value, f"{within}{name}.")
        elif value is not None and not _OF_NO_ACCOUNT.fullmatch(name):
            yield within + name, value
    rotations = [content[name] for name in _ROTATIONS if content.get(name) and isinstance(content[name], dict)]
    if rotations or "rope_theta" in content:
        yield f"{within}rope_type", "default"  # unless it is named
    for one in rotations:
        yield from _rotations(one, within)


def _rotations(content: dict[str, Any], within: str) -> Iterator[tuple[str, Any]]:
    """Those of full attention stood beside the model's other values before transformers 5, and so do they here."""
    for name, value in content.items():
        if isinstance(value, dict):  # of a type of layers
            yield from _rotations(value, within if name == "full_attention" else f"{within}{name}.")
        elif value is not None:
            kind = _OLDER_KINDS.get(value, value) if isinstance(value, str) else value
            yield within + _OLDER_NAMES.get(name, name), kind
