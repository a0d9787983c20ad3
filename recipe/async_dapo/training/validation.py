"""A validation's answers: what observers are given of them, and which of their reward's fields have a mean."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

VOTES = "pred"  # the field by which verl counts what most answers to a prompt say


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationAnswers:
    """What a validation has got of the model, a place for each answer; those that failed are absent.

    Attributes:
        uids: of their prompts.
        sources: the prompts' data sources.
        prompts, texts: as text, without special tokens.
        scores: their rewards.
    """

    uids: Sequence[str]
    sources: Sequence[str]
    prompts: Sequence[str]
    texts: Sequence[str]
    scores: Sequence[float]


class Validation:
    """What the trainer keeps of a run's validations, of which there is one at a time.

    Attributes:
        answered: prompts, answers and scores of the one that is under way, as verl gives them.
    """

    def __init__(self) -> None:
        self.answered: tuple[list[str], list[str], list[float]] = ([], [], [])
        self._has_logged_fields = False

    def take_answers(self, uids: Sequence[str], sources: Iterable[Any]) -> ValidationAnswers:
        (prompts, texts, scores), self.answered = self.answered, ([], [], [])
        return ValidationAnswers(uids=uids, sources=[*map(str, sources)], prompts=prompts, texts=texts, scores=scores)

    def averaged(self, rewards: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Drop reward fields that are not numbers: verl would crash averaging them."""
        averaged = fields_to_average(rewards)
        left_out = sorted(rewards.keys() - averaged.keys())
        if left_out and not self._has_logged_fields:
            self._has_logged_fields = True
            logger.info("validation has no mean of the reward's fields %s: not all their values are numbers", left_out)
        return averaged


def fields_to_average(rewards: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What verl can average of the fields that validation's answers were rewarded with: numbers in every answer that
    has them; and `pred`, if its values can be counted as votes.

    Args:
        rewards: field -> its value in each answer; None in those without it.
    """

    def fits(name: str, value: Any) -> bool:
        return value is None or isinstance(value, Real | np.bool_) or (name == VOTES and isinstance(value, str))

    return {name: values for name, values in rewards.items() if all(fits(name, value) for value in values)}
