"""What verl's `Tracking` lets a recipe put in the place of its loggers."""

from pathlib import Path

import pytest
from verl.utils.tracking import Tracking

from recipe.async_dapo.record.run_files import metrics_file
from recipe.async_dapo.training import loggers as ours
from recipe.async_dapo_lab.run_record import read_steps

from ..support.composed_runs import compose_run
from ..support.recorded_runs import recipe_step


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
        ours.extend(tracking, earlier_metrics=earlier)
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


def test_the_console_has_a_line_a_step(monkeypatch, capsys):
    said: list[str] = []
    monkeypatch.setattr(ours.logger, "info", said.append)
    tracking = Tracking("project", "run", ["console"])
    ours.extend(tracking, total_steps=3)
    for step in (1, 2, 3):
        tracking.log(data=recipe_step(step), step=step)
    tracking.finish()
    assert said[0].startswith("step 1/3 | ") and "failed 0" in said[0] and len(said) == 3
    assert said[0].endswith(" left") and "timing_s/step" not in capsys.readouterr().out
