"""vLLM's speculative config: of this recipe's option, or as users give it themselves."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ...config.values import MOST_DRAFT_TOK, ConfigError, Drafts

SPECULATIVE_CONFIGS: dict[Drafts, dict[str, Any]] = {
    Drafts.MTP: {"method": "mtp", "draft_load_config": {"load_format": "auto"}},
    Drafts.SUFFIX: {"method": "suffix", "num_speculative_tokens": MOST_DRAFT_TOK},
}

_METHODS_WITHOUT_WEIGHTS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """What `engine_kwargs.vllm` says of drafts, by the option `async_dapo.drafts` or by users themselves.

    Attributes:
        has_weights: a model makes the drafts, and no weight update brings it back once an engine has thrown it away.
    """

    config: Mapping[str, Any]

    @classmethod
    def of(cls, engine_kwargs: Mapping[str, Any]) -> "SpeculativeConfig | None":
        """None where there are none.

        Raises:
            ConfigError: for what is no object.
        """
        for key, value in engine_kwargs.items():
            if str(key).replace("-", "_") == "speculative_config" and value is not None:
                try:
                    config = json.loads(value) if isinstance(value, str) else value
                    return cls(config={**config})
                except (TypeError, ValueError) as error:
                    whole_key = f"actor_rollout_ref.rollout.engine_kwargs.vllm.{key}"
                    raise ConfigError(whole_key, value, "must be an object, or JSON of one") from error
        return None

    @property
    def method(self) -> str | None:
        return self.config.get("method")

    @property
    def has_weights(self) -> bool:
        return (self.method or self.config.get("model")) not in _METHODS_WITHOUT_WEIGHTS

    @property
    def most_tok(self) -> int:
        """Of a draft; 0 = vLLM's own default, which is not known here."""
        return int(self.config.get("num_speculative_tokens") or 0)


def own_head_drafts(rollout: DictConfig) -> bool:
    """Whether verl has engines draft with the model's own head (`mtp`)."""
    return all(OmegaConf.select(rollout, f"mtp.{name}") for name in ("enable", "enable_rollout"))


def speculative_config(drafts: Drafts, config: DictConfig) -> dict[str, Any]:
    """vLLM's, for `async_dapo.drafts`. Of verl's training engines Megatron alone has the model's head, and brings it to
    the engines if `mtp.enable` says so; any other head stays as it is in the checkpoint.
    """
    chosen, mtp = dict(SPECULATIVE_CONFIGS[drafts]), config.actor_rollout_ref.rollout.mtp
    if drafts is Drafts.MTP:
        chosen["num_speculative_tokens"] = mtp.num_speculative_tokens
        if config.model_engine == "megatron" and mtp.enable:
            del chosen["draft_load_config"]
    return chosen
