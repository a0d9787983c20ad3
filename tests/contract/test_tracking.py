"""What verl's `Tracking` lets a recipe put in the place of its loggers, and which variables these read."""

import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verl.utils import tracking as verls
from verl.utils.tracking import Tracking

from recipe.async_dapo.core.policy_health import PolicyHealth
from recipe.async_dapo.record import keys
from recipe.async_dapo.record.run_files import RUN_FILE, STEPS_FILE, metrics_file, read_lines
from recipe.async_dapo.record.run_record import RunDescription, read_steps
from recipe.async_dapo.runtime import logger_variables
from recipe.async_dapo.runtime.launch import LAUNCH_VARIABLE, note_launch
from recipe.async_dapo.training import loggers as ours
from recipe.async_dapo.training import tracking as step_lines
from recipe.async_dapo.training.recorder import Recorder, ValidationAnswers, recorder_class
from recipe.async_dapo_lab import recorder as recorder_module
from recipe.async_dapo_lab.run_files import ANSWERS_FILE, SAMPLES_FILE
from recipe.async_dapo_lab.train import RECORDER

from ..support.composed_runs import compose_run
from ..support.recorded_runs import recipe_step

HEALTH = PolicyHealth((), rejected_share="", skipped="")
OPTIONS: Any = SimpleNamespace(report_dir=None)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_resumed_run_goes_on_with_the_metrics_file_and_what_is_trained_again_stays_beside_it(
    tmp_path, monkeypatch, is_named
):
    config = compose_run(["trainer.logger=[file]", "trainer.project_name=project", "trainer.experiment_name=run"])
    monkeypatch.chdir(tmp_path)
    if is_named:
        monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "named.jsonl"))
    file = metrics_file("project", "run")
    for resumed_from, steps in ((0, (1, 2, 3)), (2, (3, 4)), (4, (5,)), (0, (1,))):
        earlier = ours.keep_metrics_file(config, resumed_from)
        tracking = Tracking("project", "run", ["file"])
        assert Path(tracking.logger["file"].filepath).absolute() == file.absolute()
        ours.extend(tracking, config, OPTIONS, Recorder(), HEALTH, earlier_metrics=earlier)
        for step in steps:
            tracking.log(data={"resumed_from": resumed_from}, step=step)
        tracking.finish()
    assert seen(file.with_name(f"{file.stem}.1.jsonl")) == [(1, 0), (2, 0), (3, 0)]
    assert seen(file.with_name(f"{file.stem}.3.jsonl")) == [(1, 0), (2, 0), (3, 2), (4, 2), (5, 4)]
    assert seen(file) == [(1, 0)], "a new run has its own"


def seen(file: Path) -> list[tuple[int, float]]:
    return [(line.step, line.data["resumed_from"]) for line in read_steps(file)]


def test_a_start_that_died_before_its_first_line_and_one_that_was_killed_in_a_line_lose_no_metrics(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    config = compose_run(["trainer.logger=[console,file]"])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {}}\n{"step": 2, "da')
    assert ours.keep_metrics_file(config, 2) == b'{"step": 1, "data": {}}\n'
    (tmp_path / "metrics.jsonl").touch()
    assert ours.keep_metrics_file(config, 2) == b'{"step": 1, "data": {}}\n'
    assert ours.keep_metrics_file(compose_run(["trainer.logger=[console]"]), 2) == b""


def test_the_console_has_a_line_a_step_and_the_record_its_metrics(tmp_path, monkeypatch, capsys):
    said: list[str] = []
    for module in (step_lines, recorder_module):
        monkeypatch.setattr(module.logger, "info", lambda text, *values: said.append(text % values if values else text))
    tracking = Tracking("project", "run", ["console"])
    options: Any = SimpleNamespace(
        report_dir=str(tmp_path / "run"),
        rollout_strategy="partial",
        stop_rule="first_completed",
        target_valid_groups=64,
        rollout_n=16,
        max_response_length=100,
        over_sampling_batch_size="auto",
        rollout_pool_size="auto",
        max_staleness=4,
    )
    recorder = recorder_class(RECORDER)()
    secret = "ray_kwargs.ray_init.runtime_env.env_vars.KEY=secret"
    monkeypatch.setenv(LAUNCH_VARIABLE, "")  # is restored
    note_launch(["data.seed=1", secret])
    ours.extend(tracking, compose_run([]), options, recorder, HEALTH, total_steps=11)
    tracking.log(data=recipe_step(1) | {keys.IDLE_RATIO: 0.9}, step=1)
    for step in range(2, 11):
        tracking.log(data=recipe_step(step) | {keys.IDLE_RATIO: 0.9}, step=step)
    tracking.finish()
    assert said[0].startswith("step 1/11 | ") and "failed 0" in said[0] and len(said) == 11
    assert said[0].endswith(" left")
    assert said[-1].startswith("step 10: hint: over 10 steps, async_dapo/load_balancer/idle_ratio is 0.9")
    assert "timing_s/step" not in capsys.readouterr().out
    assert [line.step for line in read_steps(tmp_path / "run" / STEPS_FILE)] == list(range(1, 11))
    assert len(read_lines(tmp_path / "run" / SAMPLES_FILE)) == 10
    noted = json.loads((tmp_path / "run" / RUN_FILE).read_text())
    assert {"data.train_batch_size", "rollout.n", "engines"} <= noted["settings"].keys()
    assert noted["launch"] == {"overrides": ["data.seed=1"], "folder": str(Path.cwd())}, "and no secret"
    assert noted["versions"]["verl"] == "0.9.1" and "cores" in noted["machine"] and noted["checkpoints"]


def test_a_validations_answers_to_three_prompts_are_kept_with_its_step(tmp_path):
    recorder = recorder_class(RECORDER)()
    recorder.write_to(tmp_path, RunDescription(name="run", system="partial", started_s=0.0))
    prompts = ["a", "a", "bb", "ccc", "dddd"]
    answers = ValidationAnswers(
        uids=prompts, sources=["s"] * 5, prompts=prompts, texts=["1", "2", "3", "4", "5"], scores=[1.0] * 5
    )
    recorder.validated(answers)
    recorder.log({"val-core/s/acc/mean@1": 1.0}, 0)
    recorder.log(recipe_step(1), 1)
    kept = [(line["step"], line["prompt"], line["answer"]) for line in read_lines(tmp_path / ANSWERS_FILE)]
    assert kept == [(0, "a", "1"), (0, "bb", "3"), (0, "dddd", "5")]


SECRETS = {"SWANLAB_API_KEY", "VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY"}


def test_each_variable_that_verls_loggers_read_is_sent_to_the_node_that_has_them_or_is_a_secret():
    source = inspect.getsource(verls)
    read = set(re.findall(r'(?:environ\.get\(|environ\[|getenv\(|_ENV = )"([A-Z_]+)"', source))
    sent = {*logger_variables.PLAIN, *logger_variables.FOLDERS, *logger_variables.ADDRESSES}
    assert "SWANLAB_LOG_DIR" in read and read - sent == SECRETS
