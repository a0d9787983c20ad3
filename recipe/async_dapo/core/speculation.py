"""What `engine_kwargs.vllm` says of drafts, where users give vLLM a source of their own.

Read at start-up and in every server; both have to know whether there are drafts, how long they are, and whether a model
makes them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WITHOUT_WEIGHTS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDrafts:
    """Attributes:
    key: as it was given.
    has_weights: a model makes the drafts, and no weight update brings it back once an engine has thrown it away.
    """

    key: str
    config: Mapping[str, Any]

    @classmethod
    def of(cls, engine_kwargs: Mapping[str, Any]) -> "OwnDrafts | None":
        """None where there are none."""
        for key, value in engine_kwargs.items():
            if str(key).replace("-", "_") == "speculative_config" and value is not None:
                return cls(key=str(key), config=json.loads(value) if isinstance(value, str) else dict(value))
        return None

    @property
    def has_weights(self) -> bool:
        return (self.config.get("method") or self.config.get("model")) not in _WITHOUT_WEIGHTS

    @property
    def most_tok(self) -> int:
        """Of a draft; 0 = vLLM's own default, which is not known here."""
        return int(self.config.get("num_speculative_tokens") or 0)
