"""Seconds of a validation, blocking and as ordinary work, beside the steps between two of them.

As ordinary work its tokens cost what they take of full engines. Where engines share GPUs with the trainer, one policy
version is in them for one round only: the round has to last until the longest answer of the validation has ended, and
the trainer waits for the rest of it. What engines generate for training meanwhile may be worth all of that wait, if
later steps use it, or nothing of it: both ends are given.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from benchmarks.defaults.draw import FOLDER
from benchmarks.defaults.settings import SETTINGS, Setting
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import UNBOUNDED, System

ANSWERS = 960  # AIME's 30 problems, 32 times
EVERY = (5, 10, 20)  # trainer.test_freq [steps]
# How their names in the grid begin.
CHOSEN = ("8 x H100, B=128", "8 x H200, B=512", "64 x H100, B=256", "512 x H100, B=1024")
BLOCKING = System(
    name="validation",
    overrides={
        "async_dapo.stop_rule": "drain",
        "async_dapo.rollout_strategy": "discard",
        "async_dapo.over_sampling_batch_size": ANSWERS,
        "async_dapo.rollout_pool_size": None,
        "async_dapo.max_concurrent_prompts": UNBOUNDED,
        "algorithm.filter_groups.enable": False,
    },
)


def costs() -> Iterator[dict[str, Any]]:
    """A row for each setting and number of steps between two validations."""
    steps = pd.read_csv(FOLDER / "one_update" / "systems.csv").query("system == 'default'").set_index("setting")
    for setting in SETTINGS:
        if str(setting).startswith(CHOSEN):
            yield from _of(setting, steps.loc[str(setting)])


def _of(setting: Setting, step: pd.Series) -> Iterator[dict[str, Any]]:
    scenario = setting.scenario(train_batch_size=ANSWERS, rollout_n=1, updates=1)
    run = TrainingRun(scenario, BLOCKING)
    blocking = run.step()
    longest_tok = max(
        length for answers in scenario.workload().answers(ANSWERS) for length in answers.response_lens_tok
    )
    rate = step["trained_tok"] / scenario.valid_share / step["rollout_s"]  # of full engines; filtered groups count
    token_s = step["inflight_max"] * (1 - step["idle"]) / rate  # of one response among as many as a round has
    ordinary_s = blocking.trained_tok / rate
    wait_s = max(0.0, longest_tok * token_s - step["rollout_s"])
    for every in EVERY:
        whole_s = every * step["step_s"] + blocking.rollout_s
        yield {
            "setting": str(setting),
            "test_freq": every,
            "step_s": step["step_s"],
            "blocking_s": round(blocking.rollout_s, 1),
            "share": round(blocking.rollout_s / whole_s, 4),
            "ordinary_s": round(ordinary_s, 1),
            "wait_s": round(wait_s, 1),
            "saved_at_most": round((blocking.rollout_s - ordinary_s) / whole_s, 4),
            "saved_at_least": round((blocking.rollout_s - ordinary_s - wait_s) / whole_s, 4),
        }
