"""Where prompts come from: verl's data loader, or an extension that draws from it (`Declared.source`)."""

from collections.abc import Callable

from ..core.trajectory import PromptGroup
from .observer import Observer


class Source(Observer):
    """Gives the replay buffer its prompts, each as a fresh group; it sees how they end, as it observes rounds, too."""

    def draw(self, count: int, step: int) -> list[PromptGroup]:
        """The next prompts: exactly `count`, for this step."""
        raise NotImplementedError

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

    def draw(self, count: int, step: int) -> list[PromptGroup]:
        return self._draw(count)
