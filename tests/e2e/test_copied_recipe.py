"""The folder works where users copy it: in a verl checkout, under any parent, without this repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ..support.recorded_runs import write_recipe_run

RECIPE = Path(__file__).parents[2] / "recipe" / "async_dapo"
LAB = RECIPE.with_name("async_dapo_lab")


@pytest.fixture(params=["recipe/async_dapo", "experiments/my_dapo"])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The copied folder; two levels up is the checkout, empty but for it."""
    folder = tmp_path / "verl" / request.param
    shutil.copytree(RECIPE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """The copied lab, with the recipe beside it, under a parent of another name."""
    for house in (RECIPE, LAB):
        shutil.copytree(
            house, tmp_path / "verl" / "experiments" / house.name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path / "verl" / "experiments" / LAB.name


def start(copy: Path, *arguments: str, entry: str = "main_async_dapo") -> subprocess.CompletedProcess[str]:
    checkout = copy.parents[1]
    module = ".".join(copy.relative_to(checkout).parts)
    return subprocess.run(
        [sys.executable, "-m", f"{module}.{entry}", *arguments],
        cwd=checkout,
        env={**os.environ, "VERL_PLATFORM": "cpu", "PYTHONPATH": str(RECIPE / "cpu" / "plugin")},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_given_a_copy_when_started_then_its_own_configuration_is_composed(copy):
    with open(copy / "config" / "async_dapo_trainer.yaml", "a") as yaml:
        yaml.write("\n# marks the copy\nmarker: of the copy\n")
    done = start(copy, "--cfg", "job", "async_dapo.stop_rule=drain")
    assert done.returncode == 0, done.stderr
    config = OmegaConf.create(done.stdout)
    assert (config.marker, config.async_dapo.stop_rule) == ("of the copy", "drain")
    assert config.actor_rollout_ref.rollout.name == "vllm"


def test_given_a_copy_when_started_with_a_bad_run_then_our_start_up_checks_refuse_it(copy):
    done = start(copy, "hydra.run.dir=hydra", "async_dapo.over_sampling_batch_size=0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "async_dapo: async_dapo.over_sampling_batch_size=0: must be >= 1"


def test_given_both_copied_when_planned_then_the_plan_is_written(both, tmp_path):
    sizes = {"servers": 2, "train-batch-size": 8, "rollout-n": 4, "max-response-length": 1024, "length-median-tok": 300}
    small = [word for name, value in {**sizes, "steps": 3}.items() for word in (f"--{name}", str(value))]
    done = start(both, *small, "--json", str(tmp_path / "plan.json"), entry="plan")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.json").exists()


def test_given_both_copied_when_checked_then_the_overrides_are_explained(both):
    done = start(both, "async_dapo.stop_rules=fifo", entry="check")
    assert done.returncode == 1 and "did you mean async_dapo.stop_rule?" in done.stdout


def test_given_both_copied_when_a_run_has_ended_then_its_report_is_written(both, tmp_path):
    folder = write_recipe_run(tmp_path / "run", steps=2)
    done = start(both, str(folder), entry="report")
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").exists()
