"""The rows of the training data, in any order: past verl's data loader."""

from collections.abc import Sequence
from uuid import uuid4

import numpy as np
from datasets import Dataset
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tensordict_utils import get_tensordict

from ...core.trajectory import SOURCE, PromptGroup
from ...rollout.manager import prompt_rows
from ...training.source import fresh_groups


class Rows:
    """Those of a trainer."""

    def __init__(self, trainer: PPOTrainer) -> None:
        self._trainer = trainer

    @property
    def sources(self) -> Sequence[str] | None:
        """The data source of each; None = the data set is no table that says so."""
        table = getattr(self._trainer.train_dataset, "dataframe", None)
        if not isinstance(table, Dataset) or SOURCE not in table.column_names:
            return None
        return [*map(str, table[SOURCE])]

    @property
    def seed(self) -> int | None:
        """Of the order in which they are gone through; None = as they are."""
        data = self._trainer.config.data
        return (data.seed or 0) if data.shuffle else None

    def pick(self, rows: Sequence[int]) -> list[PromptGroup]:
        """These rows, each as a fresh group."""
        groups: list[PromptGroup] = []
        for row in rows:
            batch = self._trainer.train_dataloader.collate_fn([self._trainer.train_dataset[row]])
            uids = np.array([str(uuid4())], dtype=object)
            groups += fresh_groups(self._trainer, prompt_rows(get_tensordict(batch | {"uid": uids})))
        return groups
