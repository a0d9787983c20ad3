"""The folder works where users copy it: in a verl checkout, under any parent, without this repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from omegaconf import OmegaConf

from ..support.recorded_runs import write_recipe_run

RECIPE = Path(__file__).parents[2] / "recipe" / "async_dapo"
LAB = RECIPE.with_name("async_dapo_lab")


def copied(tmp_path: Path, place: str, house: Path = RECIPE) -> Path:
    """The copied folder; two levels up is the checkout, empty but for what is copied."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(house, tmp_path / "verl" / place, ignore=ignored))


def start(copy: Path, *arguments: str, entry: str = "main_async_dapo") -> subprocess.CompletedProcess[str]:
    checkout = copy.parents[1]
    module = ".".join(copy.relative_to(checkout).parts)
    return subprocess.run(
        [sys.executable, "-m", f"{module}.{entry}", *arguments],
        cwd=checkout,
        env={**os.environ, "VERL_PLATFORM": "cpu", "PYTHONPATH": str(LAB / "cpu" / "plugin")},
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_given_a_copy_under_another_name_when_started_with_a_bad_run_then_its_own_checks_refuse_it(tmp_path):
    copy = copied(tmp_path, "experiments/my_dapo")
    with open(copy / "config" / "async_dapo_trainer.yaml", "a") as yaml:
        yaml.write("\n# marks the copy\nmarker: of the copy\n")
    done = start(copy, "hydra.run.dir=hydra", "async_dapo.stop_rule=drain", "async_dapo.over_sampling_batch_size=0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "async_dapo: async_dapo.over_sampling_batch_size=0: must be a whole number >= 1, or auto"
    )
    config = OmegaConf.load(copy.parents[1] / "hydra" / ".hydra" / "config.yaml")
    assert (config.marker, config.async_dapo.stop_rule) == ("of the copy", "drain")
    assert config.actor_rollout_ref.rollout.name == "vllm"


def test_given_both_copied_then_a_run_is_planned_checked_and_reported(tmp_path):
    copied(tmp_path, f"experiments/{RECIPE.name}")
    lab = copied(tmp_path, f"experiments/{LAB.name}", LAB)
    sizes = {"servers": 2, "train-batch-size": 8, "rollout-n": 4, "max-response-length": 1024, "length-median-tok": 300}
    small = [word for name, value in {**sizes, "steps": 3}.items() for word in (f"--{name}", str(value))]
    planned = start(lab, *small, "--json", str(tmp_path / "plan.json"), entry="plan")
    assert planned.returncode == 0 and (tmp_path / "plan.json").exists(), planned.stderr
    checked = start(lab, "rehearsal.accelerator=h100", "async_dapo.stop_rules=fifo", entry="check")
    assert checked.returncode == 1 and "did you mean async_dapo.stop_rule" in checked.stdout
    folder = write_recipe_run(tmp_path / "run", steps=2)
    reported = start(lab, str(folder), entry="report")
    assert reported.returncode == 0 and (folder / "report.html").exists(), reported.stderr
