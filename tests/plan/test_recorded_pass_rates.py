"""Pass rates of prompts from a run's history file."""

import json
from pathlib import Path

import numpy as np
import pytest

from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.prompt_history import PRIOR
from recipe.async_dapo_lab.plan.candidates import data_choices
from recipe.async_dapo_lab.plan.inputs import Inputs

from ..support.unreadable_history import UNREADABLE


def history(folder: Path, counts: dict[str, tuple[float, float]]) -> Path:
    prompts = {key: {"right": right, "wrong": wrong, "visits": 1} for key, (right, wrong) in counts.items()}
    file = folder / "history.json"
    file.write_text(json.dumps({"format": 1, "data_set": "any", "prompts": prompts}))
    return file


def test_given_a_history_then_pass_rates_are_drawn_from_its_prompts_posteriors(tmp_path: Path) -> None:
    file = history(tmp_path, {"easy": (16, 0), "hard": (0, 16), "mixed": (4, 12)})
    scenario = Inputs.load(None, {"history_file": str(file)}).scenario()
    assert set(data_choices(scenario)) == {"history"}
    metrics = scenario.pass_rates.draw(np.random.default_rng(0), 20_000, 2, visits=1)[:, 0]
    means = [(right + PRIOR) / (16 + 2 * PRIOR) for right in (16, 0, 4)]
    assert metrics.mean() == pytest.approx(sum(means) / 3, abs=0.01)
    second_moments = [m * (1 - m) / (16 + 2 * PRIOR + 1) + m**2 for m in means]
    assert (metrics[:, 0] * metrics[:, 1]).mean() == pytest.approx(sum(second_moments) / 3, abs=0.01)


@pytest.mark.parametrize("name", list(UNREADABLE)[:2])  # the others: `test_history.py` of training
def test_given_something_else_then_it_is_refused_as_in_training(tmp_path: Path, name: str) -> None:
    file = tmp_path / "history.json"
    cause = UNREADABLE[name](file)
    with pytest.raises(ConfigError, match=cause) as refused:
        Inputs.load(None, {"history_file": str(file)}).scenario()
    assert refused.match(r"history_file=.*is not what this recipe wrote .* delete it, or name a file that a run has")


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (None, "No such file"),
        ({}, "knows no prompt"),
        ({str(number): (10_000, 0) for number in range(8)}, "[0-3] of 1024 sampled groups of n=16 are valid"),
    ],
    ids=["no file", "no prompt", "always right"],
)
def test_given_a_history_that_no_step_could_train_on_then_the_file_is_named(tmp_path, counts, words) -> None:
    file = tmp_path / "nowhere.json" if counts is None else history(tmp_path, counts)
    with pytest.raises(ConfigError, match=f"history_file={file}.*{words}"):
        Inputs.load(None, {"history_file": str(file)}).scenario()
