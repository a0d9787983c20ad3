"""A worker extension that switches an engine's proposer of drafts off and on, for `cost`; vLLM loads it by its path."""

import time
from typing import Any

from recipe.async_dapo.weights.stream import WeightReceiver


class Switch(WeightReceiver):
    """The recipe's own, which can reach the proposer; switched off, that proposes nothing and takes no time."""

    _spent_s, _steps = 0.0, 0

    def switch_drafts(self, is_on: bool) -> None:
        self._spent_s, self._steps = 0.0, 0
        drafter = self.model_runner.drafter
        vars(drafter).pop("propose", None)
        propose = drafter.propose

        def timed(*arguments: Any, **options: Any) -> list[list[int]]:
            began = time.perf_counter()
            proposed: list[list[int]] = propose(*arguments, **options)
            self._spent_s, self._steps = self._spent_s + time.perf_counter() - began, self._steps + 1
            return proposed

        drafter.propose = timed if is_on else _nothing

    def drafter_step_s(self) -> float:
        """What it takes of a step, mean since it was switched on [s]."""
        return self._spent_s / max(1, self._steps)


def _nothing(*arguments: Any, **_: Any) -> list[list[int]]:
    """As every proposer is called: among its arguments is a list of what each request has sampled."""
    sampled = next(argument for argument in arguments if isinstance(argument, list))
    return [[] for _ in sampled]
