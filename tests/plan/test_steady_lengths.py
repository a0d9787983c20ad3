"""In a steady state, what is trained is as long as what the model answers, whatever is interrupted on the way.

Trained lengths are compared with what the same prompts are answered with on average, which takes the prompts' own
scatter out of the ratio: 70 steps of 32 groups give it a standard error of 0.008, four seeds one of 0.004. That the
trained prompts are those that were drawn is compared apart. `discard` with `first_completed` is biased, as
docs/options.md says.
"""

from statistics import fmean

import numpy as np
import pytest

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System, recipe
from recipe.async_dapo_lab.plan.workload import ANSWERS

from ..support.plan_settings import small_scenario

STEPS, WARMUP = 100, 30
DISCARD, FIRST_COMPLETED = RolloutStrategy.DISCARD, StopRuleName.FIRST_COMPLETED
# Half of the groups are behind those that a step trains.
TWICE = {"over_sampling_batch_size": 64}


class WatchedLengths(TrainingRun):
    """A run that remembers the prompts that it draws and trains, and their answers."""

    def __init__(self, scenario: Scenario, system: System) -> None:
        super().__init__(scenario, system)
        self.lengths = scenario.lengths
        self.limit_tok = scenario.max_response_length
        self.trained: list[float] = []
        self.trained_tok = 0.0  # of the steps after the warm-up: sum of the groups' mean lengths
        self.expected_tok = 0.0  # what their prompts are answered with on average
        self._levels: dict[str, float] = {}

    def _store(self, group: PromptGroup) -> None:
        super()._store(group)
        self._levels[group.uid] = group.prompt[ANSWERS].level

    def _measure(self, simulated, **values) -> StepMeasure:
        levels = [self._levels[uid] for uid in simulated.summary.trained_uids]
        self.trained += levels
        if self._step > WARMUP:
            for uid in simulated.summary.trained_uids:
                tags = self._stored[uid]
                self.trained_tok += sum(n for tag in tags for _, n in tag["segments"]) / len(tags)
            self.expected_tok += sum(self.mean_tok(levels))
        return super()._measure(simulated, **values)

    def mean_tok(self, levels: list[float]) -> np.ndarray:
        """Mean lengths of answers to prompts of these levels."""
        z, weights = np.polynomial.hermite_e.hermegauss(101)
        shared, own = self.lengths.correlation**0.5, (1 - self.lengths.correlation) ** 0.5
        lens_tok = self.lengths.of_normal(shared * np.asarray(levels)[:, None] + own * z[None])
        return np.clip(lens_tok, 1, self.limit_tok) @ (weights / weights.sum())

    @property
    def answers_ratio(self) -> float:
        """Trained lengths over those that the same prompts have on average."""
        return self.trained_tok / self.expected_tok

    @property
    def prompts_ratio(self) -> float:
        """Lengths that trained prompts have on average over those of all prompts drawn."""
        drawn = self._scenario.workload().answers(self._workload._drawn)
        valid = [one.level for one in drawn if min(one.metrics) < max(one.metrics)]
        return float(self.mean_tok(self.trained).mean() / self.mean_tok(valid).mean())


def ratios(*, seeds: int, sigma: float, valid_share: float = 0.6, **options) -> tuple[float, float]:
    """Answers and prompts: means of so many runs."""
    runs = []
    for seed in range(seeds):
        scenario = small_scenario(
            train_batch_size=32,
            max_num_seqs=64,
            lengths=LogNormalLengths(median_tok=400, sigma=sigma, correlation=0.5),
            valid_share=valid_share,
            seed=seed,
        )
        run = WatchedLengths(scenario, recipe("steady", **options))
        for _ in range(STEPS):
            run.step()
        runs.append(run)
    return fmean(run.answers_ratio for run in runs), fmean(run.prompts_ratio for run in runs)


@pytest.mark.slow
def test_given_discard_when_half_of_the_groups_are_behind_those_trained_then_short_answers_are_not_preferred():
    answers, prompts = ratios(seeds=1, sigma=1.4, valid_share=1.0, rollout_strategy=DISCARD.value, **TWICE)
    assert answers == pytest.approx(1, abs=0.02) and prompts == pytest.approx(1, abs=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("sigma", [0.9, 1.4])
@pytest.mark.parametrize("options", [{}, {"max_staleness": 0}, TWICE], ids=["defaults", "on-policy", "twice"])
@pytest.mark.parametrize("stop_rule", [None, *StopRuleName])
@pytest.mark.parametrize("strategy", list(RolloutStrategy))
def test_given_a_steady_state_then_trained_lengths_are_the_natural_ones(strategy, stop_rule, options, sigma):
    rule = None if stop_rule is None else stop_rule.value
    answers, prompts = ratios(seeds=4, sigma=sigma, rollout_strategy=strategy.value, stop_rule=rule, **options)
    keeps_nothing = strategy is DISCARD or options.get("max_staleness") == 0
    if keeps_nothing and stop_rule is FIRST_COMPLETED:
        assert answers < 1.02  # biased, as documented
    else:
        assert answers * prompts == pytest.approx(1, abs=0.02)
