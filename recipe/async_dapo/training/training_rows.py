"""Prompt groups of the rows of the training data, as verl's data loader gives them, or past it."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from datasets import Dataset
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tensordict_utils import get_tensordict

from ..config.values import ConfigError
from ..core.trajectory import SOURCE, PromptGroup
from ..record.checkpoint_folder import ANEW
from ..rollout.manager import make_group, prompt_rows
from .source import Rows


def fresh_groups(trainer: PPOTrainer, rows: Sequence[dict[str, Any]]) -> list[PromptGroup]:
    n = trainer.config.actor_rollout_ref.rollout.n
    return [make_group(row, n=n, step=trainer.global_steps) for row in rows]


def next_groups(trainer: PPOTrainer, count: int) -> list[PromptGroup]:
    """Draw prompts from the data loader, one by one, so that its state counts exactly what was drawn."""
    try:
        rows = [row for _ in range(count) for row in prompt_rows(trainer._fetch_one_gen_batch())]
    except StopIteration:  # of a loader that is told to begin behind its end
        raise ConfigError(
            "data.train_files",
            trainer.config.data.train_files,
            f"{len(trainer.train_dataset):,} prompts are fewer than the checkpoint's run had drawn; resume with its "
            f"data, or {ANEW}",
        ) from None
    return fresh_groups(trainer, rows)


class TrainingRows(Rows):
    """Those of a trainer, whose data are loaded later than this is built."""

    def __init__(self, trainer: PPOTrainer) -> None:
        self._trainer = trainer

    @property
    def sources(self) -> Sequence[str] | None:
        table = getattr(self._trainer.train_dataset, "dataframe", None)
        if not isinstance(table, Dataset) or SOURCE not in table.column_names:
            return None
        return [*map(str, table[SOURCE])]

    @property
    def seed(self) -> int | None:
        data = self._trainer.config.data
        return (data.seed or 0) if data.shuffle else None

    def pick(self, rows: Sequence[int]) -> list[PromptGroup]:
        groups: list[PromptGroup] = []
        for row in rows:
            batch = self._trainer.train_dataloader.collate_fn([self._trainer.train_dataset[row]])
            uids = np.array([str(uuid4())], dtype=object)
            groups += fresh_groups(self._trainer, prompt_rows(get_tensordict(batch | {"uid": uids})))
        return groups
