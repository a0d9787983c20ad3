"""Trainer and engines on GPUs of their own: nothing vanishes, engines go on, and what is too old is thrown away."""

from dataclasses import replace

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.candidates import bound_of, separate_splits
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.measures import mean_of
from recipe.async_dapo_lab.plan.separate_training import SeparateRun
from recipe.async_dapo_lab.plan.systems import System, verl_separate_async

from ..support.plan_settings import small_scenario

SCENARIO = small_scenario(num_servers=4)


def separate(*, trains: int = 1, parts: int = 4, **habits: object) -> System:
    system = verl_separate_async(groups=8, trainer_servers=trains, servers=4, parts=parts)
    return replace(system, habits=replace(system.habits, **habits))


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("max_versions", [None, 2])
def test_given_any_split_then_every_generated_token_is_accounted_for(parts, max_versions) -> None:
    run = SeparateRun(SCENARIO, separate(parts=parts, max_versions=max_versions))
    steps = [run.step() for _ in range(8)]
    spent = sum(step.trained_tok + step.filtered_tok + step.wasted_tok for step in steps)
    assert sum(step.generated_tok for step in steps) == spent + steps[-1].buffered_tok
    assert all(step.trained_trajectories == 8 * 4 for step in steps)
    assert all(step.drawn_groups >= 8 for step in steps) and steps[0].drawn_groups >= 16, "no warm-up batch"


def test_given_engines_that_go_on_while_the_trainer_trains_then_a_step_is_shorter_than_its_parts() -> None:
    run = SeparateRun(SCENARIO, separate())
    mean = mean_of([run.step() for _ in range(12)][4:])
    busy_s, training_s = mean.server_busy_s / mean.num_servers, mean.log_prob_s + mean.train_s
    assert busy_s > mean.rollout_s + 0.5 * training_s, "engines have waited for the trainer"
    assert bound_of(SCENARIO).step_s < mean.step_s < busy_s + training_s


def test_given_more_gpus_to_train_then_training_is_shorter_and_the_wait_for_samples_longer() -> None:
    few, many = (mean_of([SeparateRun(SCENARIO, separate(trains=k)).step() for _ in range(8)]) for k in (1, 3))
    assert many.train_s == pytest.approx(few.train_s / 3, rel=0.1) and many.rollout_s > few.rollout_s
    assert (few.num_servers, many.num_servers, few.num_gpus) == (3, 1, 4)


def test_given_groups_that_too_many_versions_span_then_they_are_thrown_away_and_replaced() -> None:
    scenario = replace(SCENARIO, lengths=LogNormalLengths(median_tok=300, sigma=1.3, correlation=0.5))
    free, bound = (SeparateRun(scenario, separate(max_versions=most)) for most in (None, 2))
    free_steps, bound_steps = ([run.step() for _ in range(15)] for run in (free, bound))
    assert sum(step.wasted_tok for step in free_steps) == 0 < sum(step.wasted_tok for step in bound_steps)
    assert max(step.staleness_max for step in bound_steps) <= 1 < max(step.staleness_max for step in free_steps)


def test_given_seconds_of_training_that_were_measured_then_they_are_those_of_all_gpus_and_of_the_whole_batch() -> None:
    run = SeparateRun(replace(SCENARIO, training_s=10.0), separate(trains=2))
    assert run.step().train_s == pytest.approx(20.0)


def test_given_a_split_without_engines_or_trainer_then_it_is_refused() -> None:
    for trains in (4, 5):
        with pytest.raises(ConfigError, match=f"servers=4: {trains} to train, {4 - trains} engines"):
            SeparateRun(SCENARIO, separate(trains=trains))
    with pytest.raises(ConfigError, match="train_batch_size=8: must be a multiple of 3"):
        SeparateRun(SCENARIO, separate(parts=3))


def test_the_best_split_is_among_those_that_are_tried() -> None:
    def step_s(system: System) -> float:
        run = SeparateRun(SCENARIO, system)
        return mean_of([run.step() for _ in range(16)][4:]).step_s

    assert separate_splits(replace(SCENARIO, num_servers=1)) == []
    tried = separate_splits(SCENARIO)
    best_s = min(step_s(separate(trains=k)) for k in (1, 2, 3))
    assert min(map(step_s, tried)) <= 1.02 * best_s
