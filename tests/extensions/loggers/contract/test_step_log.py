"""What verl's `Tracking` lets a recipe put in the place of its loggers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from omegaconf import DictConfig
from verl.utils.tracking import Tracking

from recipe.async_dapo.extensions.loggers import step_log
from recipe.async_dapo.extensions.loggers.step_log import StepLog, keep_metrics_file
from recipe.async_dapo.record.run_files import metrics_file
from recipe.async_dapo_lab.run_record import read_steps

from ....support.composed_runs import compose_run
from ....support.recorded_runs import recipe_step
from ....support.simulated_options import options


def begun(config: DictConfig, global_steps: int = 0) -> StepLog:
    own = StepLog(options())
    own.training_begins(cast(Any, SimpleNamespace(config=config, global_steps=global_steps, total_training_steps=3)))
    return own


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
        own = begun(config, resumed_from)
        tracking = Tracking("project", "run", ["file"])
        assert Path(tracking.logger["file"].filepath).absolute() == file.absolute()
        own.loggers_made(tracking.logger)
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
    assert keep_metrics_file(config, 2) == b'{"step": 1, "data": {}}\n'
    (tmp_path / "metrics.jsonl").touch()
    assert keep_metrics_file(config, 2) == b'{"step": 1, "data": {}}\n'
    assert keep_metrics_file(compose_run(["trainer.logger=[console]"]), 2) == b""


def test_the_console_has_a_line_a_step_and_the_time_left_unless_seconds_are_virtual(monkeypatch, capsys):
    said: list[str] = []
    monkeypatch.setattr(step_log.logger, "info", said.append)
    tracking, own = Tracking("project", "run", ["console"]), begun(compose_run(["trainer.logger=[console]"]))
    own.loggers_made(tracking.logger)
    tracking.logger["async_dapo_loggers"] = own
    for step in (1, 2, 3):
        tracking.log(data=recipe_step(step), step=step)
    own.speedup = 10.0
    tracking.log(data=recipe_step(1), step=1)
    tracking.finish()
    assert said[0].startswith("step 1/3 | ") and "failed 0" in said[0] and len(said) == 4
    assert said[0].endswith(" left") and "timing_s/step" not in capsys.readouterr().out
    assert said[3].startswith("step 1 | ") and not said[3].endswith(" left")


def test_where_no_console_is_wanted_there_is_no_line(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(step_log.logger, "info", said.append)
    own = begun(compose_run(["trainer.logger=[tensorboard]"]))
    own.loggers_made({})
    own.log(recipe_step(1), 1)
    assert said == []
