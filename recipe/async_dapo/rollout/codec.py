"""What of a prompt is no text: how a group keeps it, how agent loops see it, and what training takes of it.

row of the data set --pack--> group (pool, checkpoints, object store)
                                |--open--> agent loop, engine
                                |--strip--> rows of the queue
                                +--inputs--> what a model takes beside tokens

Of text there is nothing to do. An extension that serves more puts its own codec in (`Declared.codec`).
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from verl.experimental.agent_loop import AgentLoopWorker

from ..config.extensions import of_copy
from ..config.values import ConfigError
from ..core.trajectory import PromptGroup
from ..record.plain_values import AGENT_LOOP
from ..store import ModelInputs, text_inputs
from .prompt_checks import PromptChecks

MEDIA = ("image", "video", "audio")  # kinds of a message's items beside text
PROMPTS_ONLY = "training sees the pictures of prompts only; have tools and agent loops answer with text"


class Codec(PromptChecks):
    """The codec of prompts of text."""

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
