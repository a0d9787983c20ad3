"""A small setting that simulates in milliseconds."""

from typing import Any

from recipe.async_dapo.plan.hardware import find_accelerator
from recipe.async_dapo.plan.lengths import LogNormalLengths
from recipe.async_dapo.plan.measures import StepMeasure, mean_of
from recipe.async_dapo.plan.model_shape import load_model
from recipe.async_dapo.plan.scenario import Scenario
from recipe.async_dapo.plan.simulated_training import TrainingRun
from recipe.async_dapo.plan.systems import System
from recipe.async_dapo.plan.workload import ValidShare


def small_scenario(**changes: Any) -> Scenario:
    values = {
        "model": load_model("qwen3-8b"),
        "accelerator": find_accelerator("h200"),
        "num_servers": 2,
        "train_batch_size": 8,
        "rollout_n": 4,
        "max_response_length": 2048,
        "lengths": LogNormalLengths(median_tok=400, sigma=0.9, correlation=0.5),
        "pass_rates": ValidShare(0.6),
    }
    return Scenario(**(values | changes))


def simulate(scenario: Scenario, system: System, *, steps: int = 6) -> list[StepMeasure]:
    run = TrainingRun(scenario, system)
    return [run.step() for _ in range(steps)]


def mean_step(scenario: Scenario, system: System, *, steps: int = 12, warmup: int = 4) -> StepMeasure:
    return mean_of(simulate(scenario, system, steps=warmup + steps)[warmup:])


def natural_len_tok(scenario: Scenario) -> float:
    """Mean response length of the data set's valid groups [tokens]."""
    workload = scenario.workload()
    workload.draw(8192, step=1)
    return workload.mean_drawn_tok
