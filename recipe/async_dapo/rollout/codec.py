"""What of a prompt is no text: how a group keeps it, how agent loops see it, and what training takes of it.

row of the data set --pack--> group (pool, checkpoints, object store)
                                |--open--> agent loop, engine
                                |--strip--> rows of the queue
                                +--inputs--> what a model takes beside tokens

Of text there is nothing to do. An extension that serves more puts its own codec in (`Declared.codec`).
"""

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

from omegaconf import DictConfig
from verl.experimental.agent_loop import AgentLoopWorker

from ..config.extensions import not_in_copy, of_copy
from ..config.values import ConfigError, refused
from ..core.trajectory import PromptGroup
from ..record.plain_values import AGENT_LOOP
from ..store import ModelInputs, text_inputs

MEDIA = ("image", "video", "audio")  # kinds of a message's items beside text
PROMPTS_ONLY = "training sees the pictures of prompts only; have tools and agent loops answer with text"
ABSENT = not_in_copy("pictures", "take prompts and a model of text")


class Codec:
    """The codec of prompts of text.

    Attributes:
        kinds: of items that it serves, of `MEDIA`.
    """

    kinds: Collection[str] = ()

    def pack(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """A row of verl's data set as a group keeps it."""
        return prompt

    def open(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """A group's prompt as agent loops expect it."""
        return prompt

    def strip(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """A prompt of which each item beside text has left its place alone."""
        return prompt

    async def inputs(self, group: PromptGroup, worker: AgentLoopWorker) -> ModelInputs:
        """What a model takes of the rows of a finished group beside their tokens."""
        return text_inputs

    async def shown(self, messages: Any, *, processor: Any, dataset_cls: Any, data: DictConfig) -> dict[str, Any]:
        """What verl's agent loops show to the policy beside the tokens of these messages."""
        return {}

    def check_model(self, config: DictConfig, model: Any) -> None:
        """See that training can give the model all that it takes.

        Args:
            model: verl's `HFModelConfig`.

        Raises:
            ConfigError: if it takes what this codec does not serve.
        """
        if model.processor is not None:
            what = f"a {model.hf_config.model_type} is trained as a model of pictures: {ABSENT}"
            raise refused(config, "actor_rollout_ref.model.path", what)

    def check_row(
        self, config: DictConfig, key: str, row: dict[str, Any], *, model: Any, loop: str, loop_class: Callable[[], Any]
    ) -> None:
        """See that a row's prompt can be shown to the model; it has items of `kinds` only.

        Args:
            key: of the option to blame.
            model: verl's `HFModelConfig`.
            loop: the agent loop that shows it.
            loop_class: finds its class; None of verl's own.

        Raises:
            ConfigError: if it cannot.
        """


@cache
def codec() -> Codec:
    """That of this copy: no option chooses it, so that every checkpoint's groups can be opened."""
    own: type[Codec] = of_copy("codec") or Codec
    return own()


def items_of(messages: Any) -> Iterator[dict[str, Any]]:
    """The items of a prompt's messages that are not plain text; none of what is no list of messages."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        yield from (item for item in content if kind_of(item) in MEDIA) if isinstance(content, list) else ()


def kind_of(item: Any) -> str | None:
    """Of an item of a message's content; None of one that is no item, as in a column of another kind."""
    return item.get("type") if isinstance(item, dict) else None


def check_shown(media: dict[str, Any] | None, messages: Any) -> None:
    """Compare what an agent loop has shown to the policy with what training will show it.

    Raises:
        ConfigError: if training would see less.
    """
    shown = {kind: data for kind, data in (media or {}).items() if data}
    num_shown, num_asked = len(shown.pop("images", ())), sum(1 for _ in items_of(messages))
    if shown or num_shown != num_asked:
        what = f"{num_shown} pictures" if not shown else ", ".join(shown)
        raise ConfigError(
            AGENT_LOOP,
            "multi_modal_data",
            f"has shown {what} to the policy for a prompt with {num_asked} pictures: {PROMPTS_ONLY}",
        )
