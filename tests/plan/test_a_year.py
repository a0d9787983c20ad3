"""A year of training, 20,000 rounds: what the scheduler remembers does not grow."""

import gc
import sys

import pytest

from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import recipe

from ..support.plan_settings import small_scenario

ROUNDS_OF_A_YEAR = 20_000
LOOKS = 100  # at the memory, evenly over the rounds
MOST_GROWTH = 0.5  # from the third quarter of the rounds to the last [blocks a round]; an object takes one or more


def growth(strategy: str, rounds: int) -> float:
    """Of the fewest blocks of memory that are in use after a round [blocks a round]: how many groups are held differs
    from round to round. Python counts its blocks anyway, and to trace each one would take six times as long.
    """
    scenario = small_scenario(
        train_batch_size=2,
        rollout_n=2,
        max_response_length=64,
        lengths=LogNormalLengths(median_tok=12, sigma=0.9, correlation=0.5),
    )
    options = {"algorithm.filter_groups.max_num_gen_batches": 0}
    run = TrainingRun(scenario, recipe("year", rollout_strategy=strategy).with_overrides(options))
    used = []
    for number in range(1, rounds + 1):
        run.step()
        if number > rounds // 2 and number % (rounds // LOOKS) == 0:
            gc.collect()
            used.append(sys.getallocatedblocks())
    assert run.pool.ledger.drawn >= 2 * rounds
    return (min(used[LOOKS // 4 :]) - min(used[: LOOKS // 4])) / (rounds / 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "partial",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("partial_stale_kv", "discard", "consistent")),
    ],
)
def test_given_twelve_hundred_rounds_when_simulated_then_memory_is_flat(strategy):
    assert growth(strategy, 1200) < MOST_GROWTH


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_given_a_year_of_rounds_when_simulated_then_memory_is_flat():
    assert growth("partial", ROUNDS_OF_A_YEAR) < MOST_GROWTH
