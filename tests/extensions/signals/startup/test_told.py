"""The last lines of a run that a signal ends."""

import shlex
import signal
import sys

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.extensions.signals.told import how_to_go_on, told_how_to_go_on
from recipe.async_dapo.main_async_dapo import explained
from recipe.async_dapo.record.checkpoint_folder import saving

from ....support.checkpoints import write_checkpoint


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


def test_given_a_run_of_a_reference_script_when_it_is_interrupted_then_the_command_finds_the_recipe(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-P", "-m", "module"])
    monkeypatch.setenv("PYTHONPATH", "/the recipe:/where I stand")
    trainer = {"default_local_dir": str(tmp_path), "save_freq": 2, "resume_mode": "auto"}
    told = how_to_go_on(OmegaConf.create({"trainer": trainer}))
    assert told.endswith("To begin anew: PYTHONPATH='/the recipe:/where I stand' python3 -P -m module")
    monkeypatch.delenv("PYTHONPATH")  # an installed recipe needs none
    assert how_to_go_on(OmegaConf.create({"trainer": trainer})).endswith("To begin anew: python3 -P -m module")
