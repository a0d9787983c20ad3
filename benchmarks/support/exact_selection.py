"""What screening and history do to the data, exactly, by enumeration: what a group costs, and what it teaches.

Rewards are right or wrong; answers to a prompt are independent. Given m right answers of n, the expected update is
sqrt(m (n - m)) / n times the difference of the mean gradients of right and wrong answers: the advantages are
(r - mean) / std, averaged over n.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import comb, sqrt

from recipe.async_dapo.config import AsyncDAPOConfig
from recipe.async_dapo.core.screening import Screening
from recipe.async_dapo_lab.plan.recommend import drawn_share, mixed_share, trained_share
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.systems import System


class AllScreened(System):
    """A planner's system that screens every group, where the recipe leaves a share of them alone."""

    KEEP_SHARE = 0.0

    def options(self, scenario: Scenario) -> AsyncDAPOConfig:
        parsed = super().options(scenario)
        return replace(parsed, screening=replace(parsed.screening, keep_share=self.KEEP_SHARE))


def answers(pass_rate: float, n: int, screening: Screening) -> float:
    """Expected trajectories of a group, trained or not [count]."""
    if screening.samples is None:
        return n
    goes_on = (1 - screening.keep_share) * mixed_share(pass_rate, screening.samples) + screening.keep_share
    return screening.samples + (n - screening.samples) * goes_on


def answers_per_trained_group(pass_rates: Sequence[float], n: int, screening: Screening) -> float:
    """Expected trajectories for each group that is trained, over prompts of these pass rates [count]."""
    generated = sum(answers(rate, n, screening) for rate in pass_rates)
    return generated / sum(trained_share(rate, n, screening) for rate in pass_rates)


def update_weight(pass_rate: float, n: int, screening: Screening) -> float:
    """Expected size of a group's update, groups that are not trained included: its multiple of the difference between
    the mean gradients of right and wrong answers; by enumeration of the number of right answers."""
    total = 0.0
    for right in range(1, n):
        probability = comb(n, right) * pass_rate**right * (1 - pass_rate) ** (n - right)
        total += probability * _trained_given(right, n, screening) * sqrt(right * (n - right)) / n
    return total


def _trained_given(right: int, n: int, screening: Screening) -> float:
    """Probability that a mixed group is trained [0-1]; its right answers are at any places alike."""
    k = screening.samples
    if k is None:
        return 1.0
    alike = (comb(n - k, right - k) if right >= k else 0) + (comb(n - k, right) if n - right >= k else 0)
    return 1 - (1 - screening.keep_share) * alike / comb(n, right)


def answers_per_trained_group_by_history(pass_rates: Sequence[float], n: int, exploration: float) -> float:
    """Expected trajectories for each group that is trained, with selection by history, at the second visit [count]."""
    drawn = [drawn_share(rate, n, exploration) for rate in pass_rates]
    trained = sum(share * mixed_share(rate, n) for share, rate in zip(drawn, pass_rates, strict=True))
    return n * sum(drawn) / trained
