"""The quick start, whole: it learns, it stops early, and it says so."""

import json
from pathlib import Path

import pytest

from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import QUICK_STEPS

from ..support.harness import Run, run_module


def quick_start(assets: Assets, name: str, *arguments: str) -> tuple[Path, str]:
    """Returns its folder, and what it said."""
    folder = assets.folder.parent / name  # finds its model there
    limit = ("--timeout-s", "3000")  # before pytest's own limit, which would leave its processes
    return folder, run_module("recipe.async_dapo_lab.quickstart", "--output", str(folder), *arguments, *limit)


@pytest.fixture(scope="module")
def summary(assets: Assets) -> dict:
    folder, _ = quick_start(assets, "quickstart")
    for name in ("train.log", "metrics.jsonl"):
        assert Path(folder, name).stat().st_size > 0
    return json.loads(Path(folder, "summary.json").read_text())


def test_given_the_quick_start_when_it_trains_then_the_model_learns(summary):
    assert 0.2 <= summary["accuracy_before"] <= 0.6
    assert summary["accuracy_after"] >= summary["accuracy_before"] + 0.3


def test_given_the_quick_start_when_it_trains_then_filter_and_stop_act(summary):
    assert summary["steps"] == QUICK_STEPS
    assert summary["groups"]["filtered"] > 0
    assert summary["steps_stopped_early"] > 0
    steps = Run(folder=Path(summary["options"]["output"]), exit_code=0).steps
    assert sum(step["async_dapo/partial/resumed_groups"] for step in steps) > 0
    assert sum(step["async_dapo/tokens/discarded"] for step in steps) == 0


@pytest.mark.nightly
def test_given_compare_when_both_have_trained_then_one_is_measured_against_the_other(assets: Assets):
    folder, said = quick_start(assets, "compared", "--compare", "--steps", "3")
    assert "; measured " in said and "x of verl_sync" in said
    assert 'id="side-by-side"' in Path(folder, "report.html").read_text()
