"""This recipe's proposer of drafts with a switch, for `cost`; vLLM loads both classes by their paths."""

from typing import Any

from recipe.async_dapo.engines.drafts import SiblingDrafts
from recipe.async_dapo.weights.stream import WeightReceiver


class SwitchedDrafts(SiblingDrafts):
    """Switched off it proposes nothing, and takes no time."""

    is_on = False

    def propose(self, sampled_token_ids: list[list[int]], *arguments: Any, **options: Any) -> list[list[int]]:
        if self.is_on:
            return super().propose(sampled_token_ids, *arguments, **options)
        self._known.clear()  # what is sampled meanwhile is read when it is on again
        return [[] for _ in sampled_token_ids]


class Switch(WeightReceiver):
    """The recipe's worker extension, which can reach it."""

    def switch_drafts(self, is_on: bool) -> None:
        self.model_runner.drafter.is_on = is_on
