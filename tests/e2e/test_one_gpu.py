"""The script for one GPU, with data made as its head says: a tiny model trains with it on the CPU stack."""

import json
import os
import sys
from pathlib import Path

import pytest

from recipe.async_dapo_lab import data
from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.overrides import RunSettings, verl_overrides
from recipe.async_dapo_lab.quickstart.supervision import RayFolder, TrainingProcess
from recipe.async_dapo_lab.report.run import Run

from ..support.harness import ROOT

pytestmark = pytest.mark.nightly

SCRIPT = ROOT / "recipe" / "async_dapo" / "test_qwen3_0.6b.sh"
OWN = ("data.train_files", "data.val_files", "reward.custom_reward_function")  # stay the script's
SHORT = ("data.max_prompt_length=64", "data.max_response_length=64", "actor_rollout_ref.rollout.max_model_len=128")


def test_given_a_tiny_model_in_the_models_place_when_the_script_is_run_then_it_trains_and_saves(assets, tmp_path):
    file = tmp_path / "train.jsonl"
    rows = [{"question": f"{n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(64)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = ["--answer-after", "####", "--source", "openai/gsm8k", "--system", "Think.", "--held-out", "8"]
    data.main([str(file), *made, "--output", str(tmp_path / "data" / "gsm8k")])
    with RayFolder() as ray:
        run = RunSettings(assets=assets, output=tmp_path, ray_folder=ray.path, steps=1, seed=0)
        cpu = [one for one in verl_overrides(run) if not one.startswith(OWN)]
        none_is_right = "algorithm.filter_groups.enable=False"
        command = ["bash", str(SCRIPT), *cpu, *SHORT, none_is_right, "trainer.save_freq=1"]
        environment = run_environment(os.environ, code_path=ROOT, output=tmp_path, ray_folder=ray.path)
        environment |= {"DATA_HOME": str(tmp_path / "data"), "MODEL_PATH": str(assets.model)}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        with TrainingProcess(command, environment=environment, log_file=tmp_path / "train.log") as process:
            while process.exit_code is None:
                process.watch(1.0)
    assert process.exit_code == 0, (tmp_path / "train.log").read_text()[-6000:]
    trained = Run.load(tmp_path / "checkpoints")
    assert trained.steps == [1] and trained.accuracy_name() == "openai/gsm8k/acc/mean@1"
    assert (tmp_path / "checkpoints" / "global_step_1" / "async_dapo_complete.json").exists()
