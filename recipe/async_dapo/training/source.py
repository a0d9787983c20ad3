"""Where prompts come from: verl's data loader, or an extension that draws from it (`Declared.source`)."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ..core.mix import Mix
from ..core.over_sampling import OverSampling
from ..core.round_parts import ALL
from ..core.trajectory import PromptGroup
from .observer import Observer


class Source(Observer):
    """Gives the replay buffer its prompts, each as a fresh group; it sees how they end, as it observes rounds, too."""

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        """The next prompts: exactly `count`, for this step, of a part of its mix."""
        raise NotImplementedError

    def mix(self, over_sampling: OverSampling) -> Mix:
        """Which valid groups make up a batch: any."""
        return Mix(over_sampling)

    def begin(self) -> None:
        """The data are loaded.

        Raises:
            ConfigError: if they are not what options take them to be.
        """

    @property
    def held(self) -> int:
        """Groups that it has drawn and holds back, with those of the source that it draws from [groups]. The ledger
        counts them as deferred; only a draw changes their number.
        """
        return 0


class Rows(Protocol):
    """The rows of the training data."""

    @property
    def sources(self) -> Sequence[str] | None:
        """The data source of each; None = the data set is no table that says so."""

    @property
    def seed(self) -> int | None:
        """Of the order in which they are gone through; None = as they are."""

    def pick(self, rows: Sequence[int]) -> list[PromptGroup]:
        """These rows, each as a fresh group."""


class Loader(Source):
    """verl's data loader: all prompts, in its order.

    Args:
        draw: draws that many of its prompts.
        data: for a source of prompts that has an order of its own.
    """

    def __init__(self, draw: Callable[[int], list[PromptGroup]], data: Rows | None = None) -> None:
        self._draw, self.data = draw, data

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        return self._draw(count)
