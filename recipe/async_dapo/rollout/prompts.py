"""verl's batches of prompts as prompt groups."""

from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from ..core.trajectory import PromptGroup, Trajectory
from ..files.plain_values import DATA_SET, to_plain


def make_group(row: dict[str, Any], *, n: int, step: int) -> PromptGroup:
    """A fresh group of n trajectories for one row of verl's data set.

    Raises:
        ConfigError: naming a column that no checkpoint could hold.
    """
    prompt = {key: value for key, value in row.items() if key not in ("uid", "validate")}
    plain = to_plain(prompt, source=DATA_SET)  # now rather than when a checkpoint is due
    return PromptGroup(
        uid=row["uid"],
        prompt=prompt | {"global_steps": step},
        drawn_at_step=step,
        key=blake2b(msgspec.msgpack.encode(plain), digest_size=8).hexdigest(),
        trajectories=[Trajectory(session_id=i) for i in range(n)],
    )


def prompt_rows(batch: TensorDict) -> list[dict[str, Any]]:
    """The rows of a verl batch as plain dicts."""
    rows: list[dict[str, Any]] = []
    for i in range(len(batch)):
        row: dict[str, Any] = {}
        for key, value in batch.items():
            if isinstance(value, NonTensorStack):
                row[key] = value[i].data
            elif isinstance(value, NonTensorData):
                row[key] = value.data
            elif isinstance(value, torch.Tensor | np.ndarray):
                row[key] = value[i]
            else:
                raise TypeError(f"data set column {key} arrives as {type(value).__name__}: not supported")
        rows.append(row)
    return rows
