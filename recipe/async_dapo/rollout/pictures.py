"""Pictures of prompts: bytes or a path in a group, opened for its agent loops, pixel values for the trainer.

data set --packed--> group (pool, checkpoints, object store)
                       |--opened--> agent loop, engine
                       +--PictureInputs--> queue: pixel values once a group, and in each row where they are
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from types import SimpleNamespace
from typing import Any, Self

import torch
from omegaconf import DictConfig
from PIL import Image
from verl.experimental.agent_loop import AgentLoopWorker
from verl.experimental.agent_loop.agent_loop import AgentLoopBase

from ..config.values import ConfigError
from ..core.trajectory import PromptGroup
from ..record.plain_values import AGENT_LOOP
from ..store import PIXELS, row_key
from .stored_pixels import StoredPixels

_FOR_POSITIONS = "mm_token_type_ids"  # verl's name; of a whole sequence, where the others are of its pictures

PROMPTS_ONLY = "training sees the pictures of prompts only; have tools and agent loops answer with text"
MEDIA = ("image", "video", "audio")  # kinds of a message's items beside text


def items_of(messages: Any) -> Iterator[dict[str, Any]]:
    """The items of a prompt's messages that are not plain text; none of what is no list of messages."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        yield from (item for item in content if kind_of(item) in MEDIA) if isinstance(content, list) else ()


def kind_of(item: Any) -> str | None:
    """Of an item of a message's content; None of one that is no item, as in a column of another kind."""
    return item.get("type") if isinstance(item, dict) else None


def has_pictures(messages: Any) -> bool:
    return any(item["type"] == "image" for item in items_of(messages))


def packed(prompt: dict[str, Any]) -> dict[str, Any]:
    """A row of verl's data set with each decoded picture as the bytes of its file, or as PNG if it came without. verl
    writes the pictures into the column of the prompt as well, which is left out.
    """
    if not has_pictures(messages := prompt.get("raw_prompt")):
        return prompt
    kept = {key: value for key, value in prompt.items() if not has_pictures(value)}
    return kept | {"raw_prompt": _changed(messages, _packed_item)}


def opened(prompt: dict[str, Any]) -> dict[str, Any]:
    """The same with pictures as agent loops expect them."""
    if not has_pictures(messages := prompt.get("raw_prompt")):
        return prompt
    return prompt | {"raw_prompt": _changed(messages, _opened_item)}


async def media_of(messages: Any, *, processor: Any, dataset_cls: Any, data: DictConfig) -> dict[str, Any]:
    """What verl's agent loops show to the policy beside the tokens of these messages."""
    loop: Any = SimpleNamespace(processor=processor, dataset_cls=dataset_cls, data_config=data)
    return await AgentLoopBase.process_multi_modal_info(loop, messages)


def without_pictures(prompt: dict[str, Any]) -> dict[str, Any]:
    """The same with the places of pictures alone."""
    if not has_pictures(messages := prompt.get("raw_prompt")):
        return prompt
    return prompt | {"raw_prompt": _changed(messages, lambda item: {"type": item["type"]})}


def _changed(messages: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    def changed_content(content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return [change(item) if kind_of(item) == "image" else item for item in content]

    return [message | {"content": changed_content(message["content"])} for message in messages]


def _packed_item(item: dict[str, Any]) -> dict[str, Any]:
    picture = item.get("image")
    if not isinstance(picture, Image.Image):
        return item  # a path or an address
    data = item.get("bytes")
    if data is None:
        stream = BytesIO()
        picture.save(stream, "PNG")
        data = stream.getvalue()
    return {key: value for key, value in item.items() if key not in ("image", "path")} | {"bytes": data}


def _opened_item(item: dict[str, Any]) -> dict[str, Any]:
    if "bytes" not in item:
        return item
    others = {key: value for key, value in item.items() if key != "bytes"}
    return others | {"image": Image.open(BytesIO(item["bytes"]))}


def check_seen(media: dict[str, Any] | None, messages: Any) -> None:
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


@dataclass(slots=True)
class PictureInputs:
    """What the model takes of a group's rows beside tokens. The pixel values are kept in the last row only: verl fills
    a batch up with copies of its first one.

    Attributes:
        pixels: verl's `multi_modal_inputs` of the prompt, without what depends on the response.
        positions: of a row, given its tokens [T].
        holder: key of the row that keeps the pixel values.
    """

    pixels: dict[str, torch.Tensor]
    positions: Callable[[torch.Tensor], torch.Tensor]
    holder: str

    @classmethod
    async def of(cls, group: PromptGroup, worker: AgentLoopWorker) -> Self:
        """Make the pixel values in a thread, as verl's worker makes them for each trajectory."""
        media = await media_of(
            opened(group.prompt)["raw_prompt"],
            processor=worker.processor,
            dataset_cls=worker.dataset_cls,
            data=worker.config.data,
        )
        output = SimpleNamespace(multi_modal_data=media, mm_processor_kwargs=None)
        last = next(one for one in reversed(group.trajectories) if one.is_finished)
        prompt_ids_T = torch.tensor(last.outputs[0].prompt_ids)
        inputs = await asyncio.to_thread(worker._compute_multi_modal_inputs, output, prompt_ids_T)

        def positions(input_ids_T: torch.Tensor) -> torch.Tensor:
            ids_1T = input_ids_T.unsqueeze(0)
            return worker._compute_position_ids(ids_1T, torch.ones_like(ids_1T), dict(inputs)).squeeze(0)

        pixels = {name: value for name, value in inputs.items() if name != _FOR_POSITIONS}
        return cls(pixels, positions, row_key(group, last, len(last.outputs) - 1))

    def __call__(self, key: str, input_ids_T: torch.Tensor) -> dict[str, Any]:
        return {
            "position_ids": self.positions(input_ids_T),
            "multi_modal_inputs": StoredPixels(self.holder) if self.pixels else {},
            PIXELS: self.pixels if key == self.holder else {},
        }
