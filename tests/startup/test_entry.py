"""The entry point as a user starts it: a bad run ends in one message, without a cluster."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from ray.exceptions import RayTaskError

from recipe.async_dapo import main_async_dapo
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.main_async_dapo import explained, how_to_go_on, told_how_to_go_on
from recipe.async_dapo.record.checkpoint_folder import saving
from recipe.async_dapo_lab import train
from recipe.async_dapo_lab.rehearsal import run as rehearsal

from ..support.checkpoints import write_checkpoint
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


def ray_s_own() -> None:
    """Its handler, while it starts."""
    sys.exit(signal.SIGTERM)


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (lambda: signal.raise_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda: signal.raise_signal(signal.SIGINT), 128 + signal.SIGINT),
        (ray_s_own, 128 + signal.SIGTERM),
    ],
)
@pytest.mark.parametrize("saved", ["global_step_4", None])
def test_given_an_interrupted_run_when_it_ends_then_the_last_lines_say_how_to_go_on(
    capsys, tmp_path, stop, code, saved
):
    if saved:
        with saving(tmp_path / saved, []):
            pass
    (tmp_path / "global_step_6").mkdir()  # a save that was under way
    trainer = {"default_local_dir": str(tmp_path), "save_freq": 2, "resume_mode": "disable"}
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, explained(), told_how_to_go_on(OmegaConf.create({"trainer": trainer})):
        stop()
    assert ended.value.code == code and signal.getsignal(signal.SIGTERM) is before
    line, command = capsys.readouterr().err.splitlines()[-2:]
    what = f"{tmp_path / saved} is saved" if saved else "no checkpoint is saved (trainer.save_freq=2)"
    assert line == f"async_dapo: interrupted before the first step; {what}"
    assert command.startswith("To go on from there: " if saved else "To begin anew: ")
    assert shlex.join(sys.orig_argv) in command and ("trainer.resume_mode=auto" in command) == (saved is not None)


def test_given_checkpoints_to_be_read_when_a_run_is_interrupted_then_none_is_named_to_go_on_from(tmp_path):
    write_checkpoint(tmp_path, 4, files=["actor/model.pt"])
    trainer = {"default_local_dir": str(tmp_path), "save_freq": 2, "resume_mode": "disable"}
    told = how_to_go_on(OmegaConf.create({"trainer": trainer}))
    assert f"{tmp_path}/global_step_4 is saved, without optimizer and extra: no run goes on from it\nTo begin a" in told


def test_given_secrets_in_overrides_when_a_run_is_interrupted_then_the_command_hides_them(monkeypatch, tmp_path):
    environment = "+ray_kwargs.ray_init.runtime_env"
    secrets = [
        f"{environment}.env_vars.WANDB_API_KEY=x7",
        f"{environment}={{env_vars: {{A: x7}}}}",
        "+reward.custom_reward_function.reward_kwargs.judge_api_key=x7",
    ]
    plain = ["data.prompt_key=question", "data.train_files=/secret/train.parquet"]
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "module", *plain, *secrets])
    trainer = {"default_local_dir": str(tmp_path), "save_freq": 2, "resume_mode": "auto"}
    told = how_to_go_on(OmegaConf.create({"trainer": trainer}))
    assert "x7" not in told and told.count("=<hidden>") == len(secrets) and all(option in told for option in plain)


def test_given_the_lab_when_a_run_is_interrupted_then_it_leaves_a_report(tmp_path, monkeypatch):
    folder = write_recipe_run(tmp_path / "run", steps=2)

    def interrupted(module: str) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    monkeypatch.setattr(main_async_dapo, "main", interrupted)
    monkeypatch.setattr(sys, "argv", ["train", f"async_dapo.report_dir={folder}"])
    with pytest.raises(SystemExit):
        train.main()
    assert (folder / "report.html").exists()
