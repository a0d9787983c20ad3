"""Where prompts come from: verl's data loader, or an extension that draws from it (`Declared.source`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.mix import Mix
from ..core.over_sampling import OverSampling
from ..core.round_parts import ALL
from ..core.trajectory import PromptGroup
from .observer import Observer

if TYPE_CHECKING:
    from .trainer import AsyncDAPOTrainer


class Source(Observer):
    """Gives the replay buffer its prompts, each as a fresh group; it sees how they end, as it observes rounds, too."""

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        """The next prompts: exactly `count`, for this step, of a part of its mix."""
        raise NotImplementedError

    def mix(self, over_sampling: OverSampling) -> Mix:
        """Which valid groups make up a batch: any."""
        return Mix(over_sampling)

    def begin(self, trainer: "AsyncDAPOTrainer") -> None:
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
