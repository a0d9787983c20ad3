"""What the trainer does with a batch: passes that compute log-probs, and those that train."""

from collections.abc import Iterator, Sequence
from itertools import chain

from ..config import AsyncDAPOConfig, ImportanceSampling
from ..core.staleness import StalenessLimit
from ..core.version_mixture import plan_mixtures
from ..core.version_shares import VersionTag
from .costs import TrainingCost
from .scenario import Scenario
from .systems import Habits


class TrainerPasses:
    """Seconds of a system's passes over a batch.

    Args:
        cost: None = of a trainer that has all GPUs.
    """

    def __init__(
        self, scenario: Scenario, habits: Habits, options: AsyncDAPOConfig, *, cost: TrainingCost | None = None
    ) -> None:
        self._prompt_tok, self._cost = scenario.prompt_len_tok, cost or scenario.training_cost()
        self._habits, self._correction, self._n = habits, options.importance_sampling, options.rollout_n
        self._staleness = StalenessLimit(max_staleness=options.max_staleness)

    def seconds(self, batch: Sequence[VersionTag], buffered_tok: Sequence[int], *, step: int) -> tuple[float, float]:
        """Seconds to compute log-probs, and to train.

        Args:
            batch: a group's trajectories next to each other.
            buffered_tok: lengths of the trajectories that are kept.
        """
        batch_tok = [sum(num_tok for _, num_tok in tag["segments"]) for tag in batch]
        scores_batch = self._habits.scores_batch and self._correction is not ImportanceSampling.BYPASS
        scored = list(batch_tok) if scores_batch else []
        scored += [n for n in buffered_tok if n] if self._habits.scores_buffer else []
        if self._correction is ImportanceSampling.BALANCE:
            scored += [batch_tok[row] for row in self._scored_again(batch, step)]
        return self._cost.log_prob_s(*self._sums(scored)), self._cost.train_s(*self._sums(batch_tok))

    def _scored_again(self, batch: Sequence[VersionTag], step: int) -> Iterator[int]:
        """Trajectories that older versions of the weights score for the balance heuristic, as often as they do.

        The copies of the weights are not counted.
        """
        groups = [range(first, first + self._n) for first in range(0, len(batch), self._n)]
        at_hand = range(self._staleness.oldest_trainable(step), step)
        plan = plan_mixtures([tag["segments"] for tag in batch], groups, at_hand)
        return chain.from_iterable(plan.passes_before(step - 1).values())

    def _sums(self, lens_tok: Sequence[int]) -> tuple[float, float]:
        """Sum of the sequences' lengths, prompt included, and of their squares."""
        whole = [self._prompt_tok + n for n in lens_tok]
        return sum(whole), sum(n * n for n in whole)
