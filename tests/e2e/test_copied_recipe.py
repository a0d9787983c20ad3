"""The folder works where users copy it: in a verl checkout, under any parent, without this repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

RECIPE = Path(__file__).parents[2] / "recipe" / "async_dapo"


@pytest.fixture(params=["recipe/async_dapo", "experiments/my_dapo"])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The copied folder; two levels up is the checkout, empty but for it."""
    folder = tmp_path / "verl" / request.param
    shutil.copytree(RECIPE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def start(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    checkout = copy.parents[1]
    module = ".".join(copy.relative_to(checkout).parts)
    return subprocess.run(
        [sys.executable, "-m", f"{module}.main_async_dapo", *arguments],
        cwd=checkout,
        env={**os.environ, "VERL_PLATFORM": "cpu", "PYTHONPATH": str(copy / "cpu" / "plugin")},
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
