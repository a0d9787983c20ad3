"""What a model takes of a group's rows beside tokens: pixel values once a group, and in each row where they are."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import torch
from verl.experimental.agent_loop import AgentLoopWorker

from ...core.trajectory import PromptGroup
from ...store import row_key
from .stored_pixels import PIXELS, StoredPixels

_FOR_POSITIONS = "mm_token_type_ids"  # verl's name; of a whole sequence, where the others are of its pictures


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
    async def of(cls, group: PromptGroup, worker: AgentLoopWorker, media: dict[str, Any]) -> Self:
        """Make the pixel values in a thread, as verl's worker makes them for each trajectory.

        Args:
            media: that agent loops have shown beside the prompt's tokens.
        """
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
