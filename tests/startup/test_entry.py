"""The entry point as a user starts it: a bad run ends in one message, without a cluster."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig
from ray.exceptions import RayTaskError

from recipe.async_dapo import main_async_dapo
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.main_async_dapo import explained
from recipe.async_dapo_lab import train
from recipe.async_dapo_lab.rehearsal import run as rehearsal

from ..support.composed_runs import RECIPE, valid_overrides, write_verl
from ..support.recorded_runs import write_recipe_run

REPOSITORY = RECIPE.parents[1]


def start(
    folder: Path, *overrides: str, entry: str = "async_dapo.main_async_dapo", python_path: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run an entry point in an empty folder; Ray's files would appear in `folder`/ray."""
    paths = [*python_path, REPOSITORY / "recipe" / "async_dapo_lab" / "cpu" / "plugin", REPOSITORY]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            f"recipe.{entry}",
            f"hydra.run.dir={folder}/hydra",
            f"+ray_kwargs.ray_init._temp_dir={folder}/ray",
            *overrides,
        ],
        cwd=folder,
        env={
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HYDRA_FULL_ERROR": "1",
        },
        capture_output=True,
        text=True,
        timeout=500,
    )


def assert_refused(done: subprocess.CompletedProcess[str], folder: Path, message: str) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith(f"async_dapo: {message}")
    assert "Traceback" not in done.stderr + done.stdout
    assert not (folder / "ray").exists(), "Ray was started"


@pytest.mark.slow
def test_given_a_missing_model_when_started_or_rehearsed_then_the_message_is_the_same(
    files, tmp_path, monkeypatch, capsys
):
    """In this process; how another one ends is seen with another verl."""
    for module, name in (
        (main_async_dapo, "show_logs"),
        (main_async_dapo, "note_start"),
        (main_async_dapo, "note_launch"),
        (main_async_dapo, "collect_cycles_rarely"),
        (rehearsal, "collect_cycles_rarely"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)  # of a process of its own
    command = [
        "main",
        *valid_overrides(files),
        "actor_rollout_ref.model.path=/no/such/model",
        f"hydra.run.dir={tmp_path}/hydra",
        "hydra/job_logging=none",
        "hydra/hydra_logging=none",
    ]
    messages = set()
    for main in (main_async_dapo.main, rehearsal.main):
        monkeypatch.setattr(sys, "argv", list(command))
        with pytest.raises(SystemExit) as ended:
            main()
        messages.add(ended.value.code)
    [message] = messages
    assert message.startswith("\nasync_dapo: actor_rollout_ref.model.path=/no/such/model: verl cannot load it: ")
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err


def test_given_another_verl_when_started_then_the_process_ends_with_the_remedy(files, tmp_path):
    other = tmp_path / "checkout" / "verl"
    write_verl(other, "0.7.0")
    done = start(tmp_path, *valid_overrides(files), python_path=(other.parent,))
    message = f"verl=verl==0.7.0 in {other}: this recipe needs verl==0.9.1; run: pip install 'verl==0.9.1'"
    assert_refused(done, tmp_path, message)


@pytest.mark.parametrize(
    ("entry", "flag"), [("async_dapo.main_async_dapo", "--help"), ("async_dapo_lab.rehearse", "-h")]
)
def test_asked_for_help_it_says_how_it_is_used_and_where_the_options_are(tmp_path, entry, flag):
    done = start(tmp_path, flag, entry=entry)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: python -m recipe.{entry} KEY=VALUE ...")
    assert len(done.stdout.splitlines()) < 15
    for pointer in ("docs/options.md", "python -m recipe.async_dapo.check", "data.train_files=", "--cfg job"):
        assert pointer in done.stdout


@pytest.mark.parametrize(
    ("cause", "line", "shows_traceback"),
    [
        (ConfigError("algorithm.n", 3, "raise it"), "async_dapo: algorithm.n=3: raise it", False),
        (RuntimeError("9 of 9 failed: KeyError('a')"), "async_dapo: RuntimeError: 9 of 9 failed: KeyError('a')", True),
    ],
)
def test_given_an_error_from_an_actor_when_it_ends_the_run_then_the_last_line_says_what_it_was(
    capsys, cause, line, shows_traceback
):
    remote = RayTaskError("run", "Traceback (most recent call last):", cause).as_instanceof_cause()
    with pytest.raises(SystemExit) as ended, explained():
        raise remote
    assert ended.value.code.strip().startswith(line) and len(ended.value.code.strip().splitlines()) == 1
    assert ("Traceback" in capsys.readouterr().err) is shows_traceback


def lab(folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int | str | None:
    """How the lab's training ends that is interrupted as soon as it has its options."""

    def interrupted(config: DictConfig) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    monkeypatch.setattr(main_async_dapo, "_run", interrupted)
    monkeypatch.setattr(main_async_dapo, "collect_cycles_rarely", lambda: None)  # of a process of its own
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    command = ["train", f"async_dapo.report_dir={folder}", f"hydra.run.dir={tmp_path}/hydra"]
    monkeypatch.setattr(sys, "argv", [*command, "hydra/job_logging=none", "hydra/hydra_logging=none"])
    with pytest.raises(SystemExit) as ended:
        train.main()
    return ended.value.code


def test_given_the_lab_when_a_run_is_interrupted_then_it_leaves_a_report(tmp_path, monkeypatch):
    folder = write_recipe_run(tmp_path / "run", steps=2)
    assert lab(str(folder), monkeypatch, tmp_path) == 128 + signal.SIGTERM
    assert (folder / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["${oc.env:NOT_SET_ANYWHERE}", "3"])
def test_given_a_folder_that_cannot_be_told_then_the_run_ends_as_it_did(tmp_path, monkeypatch, folder):
    assert lab(folder, monkeypatch, tmp_path) == 128 + signal.SIGTERM
