"""Folders, classes, Ray and loggers' servers that a run would miss after minutes are refused before Ray starts."""

import errno
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.checks.environment import check_environment

from ....support.composed_runs import refusal


@pytest.mark.parametrize(
    ("denied", "what", "remedy"), [(os.W_OK, "write to", "make it writable"), (os.X_OK, "enter", "let this user in")]
)
def test_a_folder_that_is_not_this_users_is_refused(run, tmp_path, monkeypatch, denied, what, remedy):
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path or not mode & denied)
    message = refusal(run, f"trainer.rollout_data_dir={tmp_path}/outputs")
    assert message == (
        f"trainer.rollout_data_dir={tmp_path}/outputs: this user may not {what} {tmp_path}; name another folder, or "
        f"{remedy}"
    )


@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("trainer.rollout_data_dir", []),
        ("trainer.default_local_dir", ["trainer.save_freq=1"]),
        ("trainer.default_local_dir", ["async_dapo.report_dir=null"]),  # looked at for a checkpoint to resume from
        ("trainer.resume_from_path", ["trainer.resume_mode=resume_path"]),
    ],
)
def test_a_folder_below_one_that_this_user_may_not_enter_is_refused(run, tmp_path, monkeypatch, key, overrides):
    """There the operating system answers no question about files, which `Path.exists` raises."""
    closed, inside, stat, access = tmp_path / "theirs", f"{tmp_path}/theirs/", os.stat, os.access
    closed.mkdir()

    def stat_as_another(path, *args, **kwargs):
        if not isinstance(path, int) and os.fspath(path).startswith(inside):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr("os.stat", stat_as_another)
    monkeypatch.setattr("os.access", lambda path, mode: access(path, mode) and Path(path) != closed)
    message = refusal(run, f"{key}={closed}/runs/global_step_3", *overrides)
    assert message == (
        f"{key}={closed}/runs/global_step_3: this user may not enter {closed}; name another folder, or let this user in"
    )


def test_loggers_files_are_looked_at_where_the_environment_puts_them(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORBOARD_DIR", f"{tmp_path}/file/board")
    assert refusal(run).startswith(f"TENSORBOARD_DIR={tmp_path}/file/board: ")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", f"{tmp_path}/file/metrics.jsonl")
    assert refusal(run, "trainer.logger=file").startswith(f"VERL_FILE_LOGGER_PATH={tmp_path}/file/metrics.jsonl: ")


@pytest.mark.parametrize("name", ["nowhere.Recorder", "Recorder"])
def test_given_a_recorder_that_is_not_found_when_checked_then_it_is_named(run, name):
    for key in ("async_dapo.recorder", "trainer.checkpoint_callback_class"):
        assert refusal(run, f"{key}={name}").startswith(f"{key}={name}: no such module; name a")


@pytest.mark.parametrize("option", [True, False])
def test_ray_client_is_refused(run, monkeypatch, option):
    """verl's driver is part of the cluster. Where nothing listens, Ray Client has said so after 45 s."""
    monkeypatch.setenv("RAY_ADDRESS", "" if option else "ray://head:10001")
    named = ["+ray_kwargs.ray_init.address=ray://head:10001"] if option else []
    key = "ray_kwargs.ray_init.address" if option else "RAY_ADDRESS"
    assert refusal(run, *named).startswith(f"{key}=ray://head:10001: is Ray Client's, in which no driver is part of")


WANDB = "trainer.logger=[console,wandb]"


DATABRICKS, SPACE = {"MLFLOW_TRACKING_URI": "databricks"}, {"TRACKIO_SPACE_ID": "me/space"}
SERVER = {"TRACKIO_SERVER_URL": "https://host/"}
KEYS = ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION")


@pytest.mark.parametrize(
    ("logger", "lacks", "has"),
    [
        ("tracking", {}, {"WANDB_MODE": "offline"}),
        ("swanlab", {}, {"SWANLAB_API_KEY": "key"}),
        ("swanlab", {"SWANLAB_MODE": "cloud"}, {"SWANLAB_MODE": "local"}),
        ("swanlab", {}, ".swanlab/.netrc"),
        ("clearml", {}, {"CLEARML_API_ACCESS_KEY": "key"}),
        ("clearml", {}, {"TRAINS_CONFIG_FILE": "a.conf"}),
        ("clearml", {}, "clearml.conf"),
        ("vemlp_wandb", dict.fromkeys(KEYS[:2], "key"), dict.fromkeys(KEYS, "key")),
        ("mlflow", DATABRICKS, {"MLFLOW_TRACKING_URI": "http://host"}),
        ("mlflow", DATABRICKS, {"DATABRICKS_TOKEN": "key"}),
        ("mlflow", DATABRICKS, ".databrickscfg"),
        ("trackio", SPACE, {"HF_TOKEN": "key"}),
        ("trackio", SPACE, ".cache/huggingface/token"),
        ("trackio", SERVER, {"TRACKIO_SERVER_URL": "https://host/?write_token=key"}),
    ],
    ids=str,
)
def test_a_logger_that_its_server_does_not_know_is_refused(run, tmp_path, monkeypatch, logger, lacks, has):
    """Either ended the run when engines were up, or recorded nothing."""
    for name in [name for name in os.environ if name.startswith(("WANDB", "SWANLAB", "HF_", "NETRC", "RAY_ADDRESS"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def lacking(variables: dict[str, str]) -> str:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                check_environment(run(f"trainer.logger=[console,{logger}]"))
            except ConfigError as error:
                return str(error)
            return ""

    assert f"{logger} finds no key on this machine, and " in (said := lacking(lacks))
    assert said.endswith(f", or leave {logger} out")
    if isinstance(has, str):
        (tmp_path / has).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / has).touch()
    assert not lacking(lacks | (has if isinstance(has, dict) else {}))


@pytest.mark.parametrize(
    ("variables", "netrc", "is_refused"),
    [
        ({}, "", True),
        ({"WANDB_MODE": "online"}, "machine other.host login user password key", True),
        ({}, "machine api.wandb.ai login user password key", False),
        ({"WANDB_API_KEY": "key"}, "", False),
        ({"WANDB_MODE": "offline"}, "", False),
        ({"WANDB_BASE_URL": "https://own.host"}, "machine own.host login user password key", False),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, "", False),  # a node of another environment may have one
    ],
)
def test_a_logger_without_a_key_is_refused(run, tmp_path, monkeypatch, variables, netrc, is_refused):
    """wandb has said so after 103 s, when engines were up."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".netrc").write_text(netrc)
    (tmp_path / ".netrc").chmod(0o600)
    with pytest.raises(ConfigError, match="wandb finds no key") if is_refused else nullcontext():
        check_environment(run(WANDB))
    if not torch.cuda.is_available():  # a laptop, where a run on GPUs is checked
        assert ("wandb finds no key" in check_environment(run(WANDB, "trainer.device=cuda"))) is is_refused
    check_environment(run(WANDB, "+ray_kwargs.ray_init.runtime_env.env_vars={WANDB_API_KEY:key}"))
