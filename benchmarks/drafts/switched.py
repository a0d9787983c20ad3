"""A worker extension that switches an engine's proposer of drafts off and on, for `cost`; vLLM loads it by its path."""

from typing import Any

from recipe.async_dapo.engines.drafts import SiblingDrafts
from recipe.async_dapo.weights.stream import WeightReceiver


class Switch(WeightReceiver):
    """The recipe's own, which can reach the proposer; switched off, that proposes nothing and takes no time."""

    def switch_drafts(self, is_on: bool) -> None:
        drafter = self.model_runner.drafter
        if not is_on:
            drafter.propose = _nothing
        else:
            vars(drafter).pop("propose", None)
            if isinstance(drafter, SiblingDrafts):
                drafter._known.clear()  # what was sampled meanwhile is read again


def _nothing(*arguments: Any, **_: Any) -> list[list[int]]:
    """As every proposer is called: among its arguments is a list of what each request has sampled."""
    sampled = next(argument for argument in arguments if isinstance(argument, list))
    return [[] for _ in sampled]
