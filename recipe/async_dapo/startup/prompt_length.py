"""How many tokens a prompt has, and a bound on it that needs no tokenizer run."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from omegaconf import DictConfig

from ..config import ConfigError
from .model_check import local_folder

# Beyond these, chat templates get options from verl itself.
_RESERVED_TEMPLATE_OPTIONS = ("tokenize", "return_dict", "return_tensors")


class PromptMeter:
    """Counts as verl's data set does: the chat template with a generation prompt.

    Raises:
        ConfigError: if the tokenizer cannot be loaded or has no chat template.
    """

    def __init__(self, config: DictConfig) -> None:
        self.limit_tok: int = config.data.max_prompt_length
        self._template_options = {
            key: value
            for key, value in config.data.apply_chat_template_kwargs.items()
            if key not in _RESERVED_TEMPLATE_OPTIONS
        }
        self._tokenizer = _load_tokenizer(config.actor_rollout_ref.model)
        try:
            self._template_tok = self.count_tok([{"role": "user", "content": ""}])
        except Exception as error:  # the template is the model's own code
            raise ConfigError(
                "actor_rollout_ref.model.path",
                config.actor_rollout_ref.model.path,
                f"its chat template fails: {error}; set actor_rollout_ref.model.custom_chat_template",
            ) from error

    def count_tok(self, prompt: list[dict[str, Any]]) -> int:
        tokens = self._tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=False, **self._template_options
        )
        return len(tokens)

    def upper_bounds_tok(self, prompts: pa.Array) -> np.ndarray:
        """A bound per prompt: the bytes of its messages, and the template's own tokens for each of them."""
        messages = prompts.flatten()
        content = pc.struct_field(messages, "content")
        per_prompt = np.asarray(pc.list_value_length(prompts))
        per_message = np.asarray(pc.fill_null(pc.binary_length(content), 0)).astype(np.int64) + self._template_tok
        ends = np.cumsum(per_prompt)
        sums = np.concatenate([[0], np.cumsum(per_message)])
        return sums[ends] - sums[ends - per_prompt]


def _load_tokenizer(model: DictConfig) -> Any:
    from verl.utils import hf_tokenizer

    key = "tokenizer_path" if model.tokenizer_path else "path"
    folder = local_folder(model, key)
    try:
        tokenizer = hf_tokenizer(folder, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"actor_rollout_ref.model.{key}", model[key], f"its tokenizer cannot be loaded: {error}; correct the path"
        ) from error
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer
