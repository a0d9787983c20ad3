"""Prompt groups of the rows of the training data, as verl's data loader gives them."""

from collections.abc import Sequence
from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from ..config.values import ConfigError
from ..core.trajectory import PromptGroup
from ..record.checkpoint_folder import ANEW
from ..rollout.manager import make_group, prompt_rows


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
