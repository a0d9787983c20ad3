"""Files and folders are found however users name them."""

import pytest

from recipe.async_dapo.startup.users_code import name_files_plainly, shipped_modules


def test_values_that_are_no_names_are_left_to_their_own_checks(run):
    modules = "+ray_kwargs.ray_init.runtime_env.py_modules=5"
    config = run("actor_rollout_ref.model.path=5", "data.train_files=[5]", modules)
    name_files_plainly(config)
    with shipped_modules(config):
        assert config.actor_rollout_ref.model.path == 5 and config.data.train_files == [5]


@pytest.mark.parametrize("home", ["file://{}", "~"])
def test_folders_that_a_run_writes_to_are_named_as_files_are(run, tmp_path, monkeypatch, home):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = run(f"trainer.default_local_dir='{home.format(tmp_path)}/runs'")
    name_files_plainly(config)
    assert config.trainer.default_local_dir == config.async_dapo.report_dir == f"{tmp_path}/runs"
