"""What other nodes get of this one: code and option files through Ray, and places as absolute paths."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from verl.utils.import_utils import load_extern_object

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.shipping import logger_variables
from recipe.async_dapo.extensions.shipping.staging import USER_PACKAGE, localise
from recipe.async_dapo.runtime.shipping import JOB_VARIABLE, OVERRIDE_VARIABLE, staged
from recipe.async_dapo_lab.train import RECORDER


@pytest.fixture(autouse=True)
def no_user_package_from_another_test():
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == USER_PACKAGE]:
        del sys.modules[name]


def modules_of(config: DictConfig) -> list[Path]:
    return [Path(path) for path in config.ray_kwargs.ray_init.runtime_env.py_modules]


def run_elsewhere(code: str, modules: list[Path], folder: Path, *more: Path) -> str:
    """Run code as a Ray worker on another node would: with the shipped modules, and nothing of this repository."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VERL_PLATFORM")}
    paths = [*(module.parent for module in modules), *more]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_is_staged_is_gone_when_ray_has_it(run) -> None:
    config = run()
    with staged(config) as ray_has_it:
        staging = modules_of(config)[0].parent
        ray_has_it()
        assert not staging.exists()


def test_given_a_recorder_in_a_package_beside_the_recipe_when_shipped_then_other_nodes_can_load_it(run, tmp_path):
    config = run(f"async_dapo.recorder={RECORDER}")
    with staged(config):
        code = "import recipe.async_dapo_lab.run_files as module; print(module.__file__)"
        assert Path(run_elsewhere(code, modules_of(config), tmp_path)).is_relative_to(modules_of(config)[0])


@pytest.mark.parametrize("kind", ["package", "folder"])
def test_given_a_node_with_other_recipes_when_shipped_then_it_can_import_both(run, tmp_path, kind):
    other = tmp_path / "site" / "recipe" / "other"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    if kind == "package":
        (other.parent / "__init__.py").touch()
    config = run()
    with staged(config):
        code = "import recipe.async_dapo.config as module, recipe.other; print(module.__file__)"
        origin = run_elsewhere(code, modules_of(config), tmp_path, tmp_path / "site")
        assert Path(origin).is_relative_to(modules_of(config)[0])
    assert not modules_of(config)[0].exists(), "the staged copy is left behind"


def test_given_a_reward_function_in_a_file_when_shipped_then_other_nodes_can_load_it(run, tmp_path, monkeypatch):
    manager = tmp_path / "reward.py"  # a file of the same name
    manager.write_text("class Manager: ...\n")
    config = run(f"reward.reward_manager.module.path=file://{manager}")
    with staged(config):
        path = config.reward.custom_reward_function.path
        paths = {path, config.reward.reward_manager.module.path}
        folder = modules_of(config)[-1]
        assert {f"pkg://{USER_PACKAGE}.{path.stem}" for path in folder.glob("reward_*.py")} == paths and len(paths) == 2
        for module in modules_of(config):
            monkeypatch.syspath_prepend(module.parent)
        score = load_extern_object(path, "compute_score")
        assert score("sums", "2", "2") == {"score": 1.0, "acc": 1.0}


def test_given_a_reward_function_in_a_package_and_a_model_of_the_hub_when_shipped_then_they_stay(run):
    function, model = "pkg://recipe.async_dapo_lab.quickstart.task", "Qwen/Qwen3-8B-Base"
    config = run(f"reward.custom_reward_function.path={function}", f"actor_rollout_ref.model.path={model}")
    with staged(config):
        assert config.reward.custom_reward_function.path == function
        assert config.actor_rollout_ref.model.path == model
        assert USER_PACKAGE not in [path.name for path in modules_of(config)]


def test_given_agent_loop_options_in_a_file_when_shipped_then_each_node_opens_its_own_copy(run, tmp_path, monkeypatch):
    (tmp_path / "loops.yaml").write_text("- name: my_loop\n")
    config = run(f"actor_rollout_ref.rollout.agent.agent_loop_config_path={tmp_path}/loops.yaml")
    with staged(config):
        for module in modules_of(config):
            monkeypatch.syspath_prepend(module.parent)
        there = config.copy()
        localise(there)
        localise(there)
        opened = Path(there.actor_rollout_ref.rollout.agent.agent_loop_config_path)
        assert opened.parent == modules_of(config)[-1]
        assert opened.read_text() == "- name: my_loop\n"


def test_given_a_missing_file_when_shipped_then_it_is_refused(run, tmp_path):
    config = run(f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tmp_path}/none.yaml")
    with pytest.raises(ConfigError, match=r"tool_config_path=.*/none\.yaml: no such file"), staged(config):
        pass


def test_given_relative_places_when_shipped_then_they_are_absolute(run, files, monkeypatch):
    monkeypatch.chdir(files)
    config = run(
        "data.train_files=[train.parquet]",
        "data.val_files=val.parquet",
        "actor_rollout_ref.model.path=model",
        "actor_rollout_ref.model.lora_adapter_path=model",
        "critic.model.path=model",
        "trainer.default_local_dir=checkpoints",
        "global_profiler.save_path=traces",
    )
    with staged(config):
        assert list(config.data.train_files) == [f"{files}/train.parquet"]
        assert config.data.val_files == f"{files}/val.parquet"
        assert config.actor_rollout_ref.model.path == f"{files}/model"
        assert config.actor_rollout_ref.model.lora_adapter_path == f"{files}/model"
        assert config.critic.model.path == f"{files}/model"
        assert config.actor_rollout_ref.rollout.profiler.save_path == f"{files}/traces"
        assert config.trainer.default_local_dir == f"{files}/checkpoints"


SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "RAY_AUTH_TOKEN")


def test_given_the_users_own_runtime_environment_when_shipped_then_it_is_kept_and_secrets_are_not_added(
    run, monkeypatch
):
    for name in SECRETS:
        monkeypatch.setenv(name, "kept-secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", "0")
    theirs = "py_modules: [/theirs], env_vars: {A: b, HF_HUB_OFFLINE: '0'}, worker_process_setup_hook: theirs.hook"
    config = run(f"+ray_kwargs.ray_init.runtime_env={{{theirs}}}")
    with staged(config):
        runtime_env = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env)
    assert runtime_env["py_modules"][0] == "/theirs" and len(runtime_env["py_modules"]) > 1
    shown = {"A": "b", "HF_HUB_OFFLINE": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    shown |= {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_DISABLE_COMPILE_CACHE": "0"}
    assert shown.items() <= runtime_env["env_vars"].items()
    assert runtime_env["worker_process_setup_hook"] == "theirs.hook"
    assert "kept-secret" not in str(runtime_env)


def test_given_places_of_loggers_when_shipped_then_they_are_those_of_the_drivers_folder(run, monkeypatch, tmp_path):
    """The task runner, which has the loggers, may run in another folder on another node."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENSORBOARD_DIR", "board")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "own.jsonl")
    monkeypatch.delenv("VERL_FILE_LOGGER_ROOT", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "my_losses")
    config = run()
    with staged(config):
        told = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert (
        f"{tmp_path}/board" == told.TENSORBOARD_DIR and "VERL_FILE_LOGGER_ROOT" not in told
    )  # a node may have its own
    assert f"{tmp_path}/own.jsonl" == told.VERL_FILE_LOGGER_PATH and told.WANDB_MODE == "offline"
    assert told.VERL_USE_EXTERNAL_MODULES == "my_losses"


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [
        ("SWANLAB_LOG_DIR", "swan", "{here}/swan"),
        ("WANDB_DIR", "wandb", "{here}/wandb"),
        ("TENSORBOARD_DIR", "s3://bucket/board", "s3://bucket/board"),
        ("MLFLOW_TRACKING_URI", "http://mlflow:5000", "http://mlflow:5000"),
        ("MLFLOW_TRACKING_URI", "databricks", "databricks"),
        ("MLFLOW_TRACKING_URI", "databricks://profile", "databricks://profile"),
        ("MLFLOW_TRACKING_URI", "mlruns", "{here}/mlruns"),
        ("MLFLOW_TRACKING_URI", "file:./mlruns", "file:{here}/mlruns"),
        ("MLFLOW_TRACKING_URI", "sqlite:///runs.db", "sqlite:///{here}/runs.db"),
        ("MLFLOW_TRACKING_URI", "sqlite:////tmp/runs.db", "sqlite:////tmp/runs.db"),
        ("MLFLOW_TRACKING_URI", "postgresql://me:kept-secret@db/runs", None),
        ("WANDB_BASE_URL", "https://own.host", "https://own.host"),
        ("MLFLOW_TRACKING_URI", "postgresql://me:with/slash/kept-secret@db/runs", None),
        ("MLFLOW_TRACKING_URI", "mysql://db/runs?user=me&Password=kept-secret", None),
        ("TENSORBOARD_DIR", "s3://me:kept-secret@bucket/board", None),
        ("TRACKIO_SERVER_URL", "https://own.host/?write_token=kept-secret", None),
        ("SWANLAB_API_HOST", "own.host", "own.host"),
    ],
)
def test_given_a_logger_of_another_place_when_shipped_then_it_is_sent_unless_it_holds_a_secret(
    run, monkeypatch, tmp_path, caplog, name, value, sent
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    config = run()
    with caplog.at_level("WARNING", logger=logger_variables.__name__), staged(config):
        told = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env)["env_vars"]
    assert told.get(name) == (sent and sent.format(here=tmp_path))
    assert "kept-secret" not in f"{told}{caplog.text}" and (f"{name} holds a password" in caplog.text) is (sent is None)


def test_given_no_setup_hook_when_shipped_then_processes_get_ours_and_can_import_it(run, tmp_path):
    config = run()
    with staged(config):
        hook = config.ray_kwargs.ray_init.runtime_env.worker_process_setup_hook
        module, _, function = hook.rpartition(".")
        code = f"import gc, {module} as module; module.{function}(); print(gc.get_threshold()[0])"
        assert run_elsewhere(code, modules_of(config), tmp_path) == "50000"


@pytest.fixture
def job(monkeypatch):
    """This process as the driver of a Ray job, whose runtime environment it takes."""
    monkeypatch.setenv(OVERRIDE_VARIABLE, "0")  # whatever a run sets is undone

    def start(**runtime_env: object) -> None:
        monkeypatch.setenv(JOB_VARIABLE, json.dumps({"runtime_env": runtime_env, "metadata": {}}))

    return start


def test_given_a_ray_job_when_shipped_then_its_modules_stay_and_its_variables_and_hook_go_before_our_defaults(run, job):
    with staged(run()):
        assert os.environ[OVERRIDE_VARIABLE] == "0", "Ray is told to override a job that is none"
    job(
        py_modules=["gcs://theirs.zip"],
        worker_process_setup_hook="theirs.hook",
        env_vars={"VERL_DATAPROTO_SERIALIZATION_METHOD": "theirs", "WANDB_API_KEY": "kept-secret"},
    )
    config = run("+ray_kwargs.ray_init.runtime_env={py_modules: [/mine], env_vars: {A: b}}")
    with staged(config):
        runtime_env = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env)
    assert runtime_env["py_modules"][:2] == ["gcs://theirs.zip", "/mine"] and len(runtime_env["py_modules"]) > 2
    assert runtime_env["env_vars"]["A"] == "b" and runtime_env["env_vars"]["VERL_PLATFORM"] == "cpu"
    assert "VERL_DATAPROTO_SERIALIZATION_METHOD" not in runtime_env["env_vars"]
    assert "worker_process_setup_hook" not in runtime_env and "kept-secret" not in str(runtime_env)
    assert os.environ[OVERRIDE_VARIABLE] == "1"


def test_given_a_field_that_the_ray_job_sets_when_the_options_set_it_too_then_the_run_is_refused(run, job):
    job(pip=["theirs"], working_dir="gcs://theirs.zip")
    config = run("+ray_kwargs.ray_init.runtime_env={pip: [mine]}")
    message = r"ray_init\.runtime_env\.pip=.*mine.*: the Ray job sets pip, too; leave it out here, or there"
    with pytest.raises(ConfigError, match=message), staged(config):
        pass
