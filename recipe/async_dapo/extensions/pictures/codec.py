"""Pictures of prompts: bytes or a path in a group, opened for its agent loops, pixel values for the trainer."""

from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig
from PIL import Image
from verl.experimental.agent_loop import AgentLoopWorker
from verl.experimental.agent_loop.agent_loop import AgentLoopBase

from ...core.trajectory import PromptGroup
from ...rollout.codec import Codec, items_of, kind_of
from ...store import ModelInputs, text_inputs
from .inputs import PictureInputs
from .start_up import check_prompt, check_trains

_MESSAGES = "raw_prompt"  # verl's column of a prompt's messages


class PictureCodec(Codec):
    """The codec of prompts of text and pictures."""

    kinds = ("image",)

    def pack(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """Each decoded picture becomes the bytes of its file, or a PNG if it came without. verl writes the pictures
        into the column of the prompt as well, which is left out.
        """
        if not has_pictures(messages := prompt.get(_MESSAGES)):
            return prompt
        kept = {key: value for key, value in prompt.items() if not has_pictures(value)}
        return kept | {_MESSAGES: _changed(messages, _packed)}

    def open(self, prompt: dict[str, Any]) -> dict[str, Any]:
        return _with(prompt, _opened)

    def strip(self, prompt: dict[str, Any]) -> dict[str, Any]:
        return _with(prompt, lambda item: {"type": item["type"]})

    async def inputs(self, group: PromptGroup, worker: AgentLoopWorker) -> ModelInputs:
        if worker.processor is None:
            return text_inputs
        parts = {"processor": worker.processor, "dataset_cls": worker.dataset_cls, "data": worker.config.data}
        return await PictureInputs.of(group, worker, await self.shown(self.open(group.prompt)[_MESSAGES], **parts))

    async def shown(self, messages: Any, *, processor: Any, dataset_cls: Any, data: DictConfig) -> dict[str, Any]:
        loop: Any = SimpleNamespace(processor=processor, dataset_cls=dataset_cls, data_config=data)
        return await AgentLoopBase.process_multi_modal_info(loop, messages)

    def check_model(self, config: DictConfig, model: Any) -> None:
        check_trains(config, model)

    def check_row(
        self, config: DictConfig, key: str, row: dict[str, Any], *, model: Any, loop: str, loop_class: Callable[[], Any]
    ) -> None:
        messages = self.strip(row)[_MESSAGES]
        check_prompt(
            config, key, messages, has_pictures=has_pictures(messages), model=model, loop=loop, loop_class=loop_class
        )


def has_pictures(messages: Any) -> bool:
    return any(item["type"] == "image" for item in items_of(messages))


def _with(prompt: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The same with changed pictures."""
    messages = prompt.get(_MESSAGES)
    return prompt | {_MESSAGES: _changed(messages, change)} if has_pictures(messages) else prompt


def _changed(messages: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    def changed_content(content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return [change(item) if kind_of(item) == "image" else item for item in content]

    return [message | {"content": changed_content(message["content"])} for message in messages]


def _packed(item: dict[str, Any]) -> dict[str, Any]:
    picture = item.get("image")
    if not isinstance(picture, Image.Image):
        return item  # a path or an address
    data = item.get("bytes")
    if data is None:
        stream = BytesIO()
        picture.save(stream, "PNG")
        data = stream.getvalue()
    return {key: value for key, value in item.items() if key not in ("image", "path")} | {"bytes": data}


def _opened(item: dict[str, Any]) -> dict[str, Any]:
    if "bytes" not in item:
        return item
    others = {key: value for key, value in item.items() if key != "bytes"}
    return others | {"image": Image.open(BytesIO(item["bytes"]))}
