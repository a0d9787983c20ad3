"""Where prompts come from: verl's data loader, or an extension that draws from it (`Declared.source`)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from ..config.values import ConfigError
from ..core.mix import ALL, Mix
from ..core.over_sampling import OverSampling
from ..core.trajectory import PromptGroup
from ..record.checkpoint_folder import ANEW
from ..rollout.manager import make_group, prompt_rows
from .observer import Observer

if TYPE_CHECKING:
    from .run_trainer import RunTrainer


class Source(Observer):
    """Gives the replay buffer its prompts, each as a fresh group; it sees how they end, as it observes rounds, too."""

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        """The next prompts: exactly `count`, for this step, of a part of its mix."""
        raise NotImplementedError

    def mix(self, over_sampling: OverSampling) -> Mix:
        """Which valid groups make up a batch: any."""
        return Mix(over_sampling)

    def begin(self, trainer: "RunTrainer") -> None:
        """The trainer has loaded its data.

        Raises:
            ConfigError: if they are not what options take them to be.
        """

    @property
    def held(self) -> int:
        """Groups that it has drawn and holds back, with those of the source that it draws from [groups]. The ledger
        counts them as deferred; only a draw changes their number.
        """
        return 0


class Loader(Source):
    """verl's data loader: all prompts, in its order.

    Args:
        draw: draws that many of its prompts.
    """

    def __init__(self, draw: Callable[[int], list[PromptGroup]]) -> None:
        self._draw = draw

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        return self._draw(count)


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
