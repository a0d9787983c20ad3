"""Which model a run trains, as its checkpoints note it. A resume has its weights, whatever model the options name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig

# Names of config.json's values that the names and shapes of weights follow from, and what is computed with them.
_COMPARED = re.compile(
    r"model_type|architectures|depth|head_dim|(vocab|(moe_)?intermediate|hidden)_size|num_(hidden_layers|experts)"
    r"|num_(attention|key_value)_heads|n_routed_experts|hidden_act|rope_theta"
)


class TrainedModel(msgspec.Struct, kw_only=True, frozen=True):
    """
    Attributes:
        path: of its folder, absolute if it is on this machine; else its name.
        architecture: what the names and shapes of its weights follow from, and what is computed with them, by dotted
            name in its config.json; empty where that cannot be read.
    """

    path: str
    architecture: dict[str, Any]

    def differs_in(self, other: "TrainedModel") -> str:
        """The first value that both name, and not as the same; empty if there is none. A model that was saved again
        names more values than before.
        """
        both = self.architecture.keys() & other.architecture.keys()
        return min((name for name in both if self.architecture[name] != other.architecture[name]), default="")

    @classmethod
    def of(cls, config: DictConfig) -> "TrainedModel":
        """The actor's."""
        model = config.actor_rollout_ref.model
        return cls(path=_place(model.path), architecture=_architecture(_place(model.hf_config_path or model.path)))


def _place(path: str) -> str:
    folder = Path(path).expanduser().absolute()
    return str(folder) if folder.exists() else path


def _architecture(path: str) -> dict[str, Any]:
    from transformers import PreTrainedConfig  # seconds, for readers of checkpoints that need none of it

    try:
        content, _ = PreTrainedConfig.get_config_dict(path)
    except OSError:  # of whatever kind: the check of the model tells it
        return {}
    return dict(_compared(content))


def _compared(content: dict[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Of the model and of its parts, such as the text's and the pictures'."""
    for name, value in content.items():
        if isinstance(value, dict) and name.endswith("_config"):
            yield from _compared(value, f"{within}{name}.")
        elif isinstance(value, dict) and name == "rope_parameters":  # before transformers 5 they were beside the others
            yield from _compared(value, within)
        elif _COMPARED.fullmatch(name):
            yield within + name, value
