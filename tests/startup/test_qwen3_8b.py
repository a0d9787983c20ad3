"""test_qwen3_8b.sh, and its sisters, one for a mixture of experts and one for a single GPU: what they start, with which
options, what they refuse."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import Auto, ConfigError
from recipe.async_dapo.startup.preflight import check_all, checks_of
from recipe.async_dapo_lab.check import _kv_room, trainer_of
from recipe.async_dapo_lab.plan.hardware import load_model
from recipe.async_dapo_lab.plan.trainer_memory import Gpu

from ..support.composed_runs import RECIPE, compose_run, needs_checks, rows, write_model, write_parquet

SCRIPT, EXPERTS, SMALL = (RECIPE / f"test_qwen3_{size}.sh" for size in ("8b", "30b_a3b", "0.6b"))
CLUSTER = {"RAY_ADDRESS": "10.0.0.1:6379", "CKPTS_DIR": "/shared/checkpoints"}
Completed = subprocess.CompletedProcess[str]
INPUTS = ("DATA_HOME", "MODEL_PATH", "CKPTS_DIR", "NNODES", "RAY_ADDRESS", "REHEARSE", "CHECK")
CHECKS_OF_OPTIONS = ["verl's options", "options together", "vLLM's arguments"]
CHECKS_OF_OPTIONS += ["verl's own checks"] if "known_values" in declared() else []
AT_ROOT = RECIPE.parents[1] / "test_qwen3_8b.sh"


@pytest.fixture
def data_home(tmp_path: Path) -> Path:
    folder = tmp_path / "data home"
    folder.mkdir()
    write_parquet(folder / "dapo-math-17k.parquet", rows(512, source="math_dapo"))
    write_parquet(folder / "aime-2024.parquet", rows(30, source="aime_2024"))
    (folder / "gsm8k").mkdir()
    write_parquet(folder / "gsm8k" / "train.parquet", rows(128, source="openai/gsm8k"))
    write_parquet(folder / "gsm8k" / "val.parquet", rows(16, source="openai/gsm8k"))
    return folder


def run_script(script: Path, *arguments: str, folder: Path, **environment: str | Path) -> Completed:
    """Run it with a python3 that prints its working folder and its arguments, one per line."""
    stub = folder / "bin" / "python3"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text("#!/bin/sh\npwd\nprintf '%s\\n' \"$@\"\n")
    stub.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in INPUTS}
    return subprocess.run(
        ["bash", str(script), *arguments],
        cwd=folder,
        env={**kept, "PATH": f"{stub.parent}:{os.environ['PATH']}", **{k: str(v) for k, v in environment.items()}},
        capture_output=True,
        text=True,
        timeout=300,
    )


def composed(done: Completed) -> DictConfig:
    assert done.returncode == 0, done.stderr
    _, *flags, module = done.stdout.splitlines()[:4]
    overrides = done.stdout.splitlines()[4:]
    assert flags == ["-P", "-m"] and module in ("recipe.async_dapo_lab.train", "recipe.async_dapo_lab.rehearse")
    own_ray = "+ray_kwargs.ray_init.address=local"  # Ray's, which verl's configuration does not name
    assert not [override for override in overrides if override.startswith("+") and override != own_ray]
    return compose_run(overrides)


def test_given_files_of_the_users_own_when_run_then_no_folder_of_data_is_asked_for(tmp_path):
    files = [f"data.{kind}_files={tmp_path}/{kind}.parquet" for kind in ("train", "val")]
    data = composed(run_script(SCRIPT, *files, folder=tmp_path)).data
    assert [data.train_files, data.val_files] == [one.partition("=")[2] for one in files]
    quoted = ("++data.train_files=['a b.parquet',c.parquet]", "+data.val_files='a b.parquet'")
    assert run_script(SCRIPT, *quoted, folder=tmp_path).returncode == 0
    for others in ([], ["trainer.project_name='of data.val_files=b'"], ["xdata.val_files=b"]):
        assert "set DATA_HOME" in run_script(SCRIPT, files[0], *others, folder=tmp_path).stderr


@needs_checks
def test_given_relative_paths_when_run_from_elsewhere_then_they_begin_where_the_user_stands(tmp_path):
    """Where another package of the recipe's name lies, which must not run, and a module of the user's, which must."""
    config_file = write_model(tmp_path / "model") / "config.json"
    context = {"max_position_embeddings": 32_768}
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | context))
    write_parquet(tmp_path / "my data.parquet", rows(512, source="sums"))
    decoy = tmp_path / "recipe" / "async_dapo_lab" / "check.py"
    decoy.parent.mkdir(parents=True)
    decoy.write_text("raise SystemExit('of another folder')")
    (tmp_path / "helper.py").write_text("def score(): return 0.5")
    (tmp_path / "reward.py").write_text("import helper\ndef compute_score(**_): return helper.score()")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in (*INPUTS, "VERL_PLATFORM")}
    done = subprocess.run(
        [
            *("bash", str(AT_ROOT), "data.train_files='my data.parquet'", "data.val_files='my data.parquet'"),
            *("actor_rollout_ref.model.path=./model", "reward.custom_reward_function.path=reward.py"),
        ],
        cwd=tmp_path,
        env={**kept, "CHECK": "1", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok   data" in done.stdout and "Everything is in order" in done.stdout


def test_given_a_folder_with_a_package_of_the_recipe_s_parent_s_name_when_called_there_then_it_is_refused(tmp_path):
    """Python prefers one with `__init__.py` to a folder without, and Ray's workers look in the working folder first."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "__init__.py").touch()
    done = run_script(SCRIPT, folder=tmp_path, DATA_HOME="/tmp")
    assert done.returncode != 0 and not done.stdout
    assert f"Python would take the package {tmp_path}/recipe for that of the recipe" in done.stderr


@pytest.mark.parametrize("script", [SCRIPT, EXPERTS, SMALL, AT_ROOT], ids=["dense", "experts", "small", "at root"])
def test_given_a_call_for_help_when_run_then_the_variables_are_explained_and_nothing_starts(script, tmp_path):
    done = run_script(script, "--help", folder=tmp_path)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.startswith("Trains Qwen3-") and "DATA_HOME" in done.stdout and "\nset -" not in done.stdout


def test_given_one_node_when_run_then_its_options_are_those_of_the_source_recipe(data_home, tmp_path):
    config = composed(run_script(AT_ROOT, folder=tmp_path, DATA_HOME=data_home))
    options = AsyncDAPOConfig.from_hydra(config)
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert config.actor_rollout_ref.model.path == "Qwen/Qwen3-8B-Base"
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 8)
    assert config.trainer.default_local_dir == str(tmp_path / "checkpoints" / "qwen3-8b-base")
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 8192)
    assert (options.rollout_n, options.target_valid_groups) == (16, 512)
    assert (options.num_workers, options.filter.metric) == (8, "acc")
    assert (actor.ppo_mini_batch_size, actor.optim.lr) == (32, 1e-6)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.loss_agg_mode) == (0.2, 0.28, "token-mean")
    assert config.algorithm.adv_estimator == "grpo"
    assert not actor.use_kl_loss and not config.algorithm.use_kl_in_reward
    overlong = config.reward.reward_kwargs.overlong_buffer_cfg
    assert config.reward.reward_manager.name == "dapo"
    assert (overlong.enable, overlong.len, overlong.penalty_factor) == (True, 4096, 1.0)
    assert options.rollout_pool_size is options.over_sampling_batch_size is Auto.AUTO
    assert not rollout.disable_log_stats, "engines do not say how full they are"


@pytest.mark.parametrize("script", [SCRIPT, EXPERTS, SMALL])
@pytest.mark.parametrize(
    ("model", "name"),
    [("/shared/Qwen3-8B", "qwen3-8b"), ("Qwen/Qwen2.5-Math-7B", "qwen2.5-math-7b"), ("My 7/", "my 7")],
)
def test_given_another_model_when_run_then_it_has_a_folder_and_a_name_of_its_own(
    data_home, tmp_path, script, model, name
):
    """In the folder of another model's checkpoints these would be resumed from."""
    (tmp_path / "My 7").mkdir()
    config = composed(run_script(script, folder=tmp_path, DATA_HOME=data_home, MODEL_PATH=model, **CLUSTER))
    assert config.trainer.default_local_dir == f"/shared/checkpoints/{name}"
    assert config.trainer.experiment_name == name


@pytest.mark.parametrize(("script", "nnodes"), [(SCRIPT, 1), (SCRIPT, 4), (EXPERTS, 2), (EXPERTS, 4), (SMALL, 1)])
def test_given_some_nodes_when_run_then_the_configuration_passes_verls_checks_and_ours(
    data_home, tmp_path, script, nnodes
):
    config = composed(run_script(script, folder=tmp_path, DATA_HOME=data_home, NNODES=str(nnodes), **CLUSTER))
    assert config.trainer.nnodes == nnodes
    assert config.trainer.default_local_dir.startswith("/shared/checkpoints/qwen3-")
    checks = checks_of(config, AsyncDAPOConfig.from_hydra(config))
    for name in CHECKS_OF_OPTIONS:
        checks[name]()


def test_given_model_and_data_when_run_then_all_start_up_checks_pass(data_home, tmp_path):
    """Both scripts have the same data, loops and rewards, which are tried once."""
    config_file = write_model(tmp_path / "model") / "config.json"
    context = {"max_position_embeddings": 32_768}  # of Qwen3-8B-Base; the tiny model's own is shorter than a response
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | context))
    folders = {"DATA_HOME": "data home", "MODEL_PATH": "model", "REHEARSE": "1"}  # one node more needs a cluster
    dense, experts = (composed(run_script(script, folder=tmp_path, **folders)) for script in (SCRIPT, EXPERTS))
    check_all(dense)
    assert (experts.data, experts.reward) == (dense.data, dense.reward)
    checks = checks_of(experts, AsyncDAPOConfig.from_hydra(experts))
    for name in checks.keys() - {"data", "reward function"}:
        checks[name]()
    config_file.unlink()
    for config in (dense, experts):
        with pytest.raises(ConfigError, match=f"{tmp_path}/model: verl cannot load it: "):
            checks_of(config, AsyncDAPOConfig.from_hydra(config))["model"]()


def test_given_one_gpu_when_run_then_the_small_script_passes_all_checks_and_fits_beside_its_engine(data_home, tmp_path):
    config_file = write_model(tmp_path / "model") / "config.json"
    context = {"max_position_embeddings": 32_768}
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | context))
    config = composed(run_script(SMALL, folder=tmp_path, DATA_HOME=data_home, MODEL_PATH=tmp_path / "model"))
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 1)
    check_all(config)
    config.actor_rollout_ref.model.path = "qwen3-0.6b"  # the planner knows its size
    gpu, model = Gpu(name="a 24 GB card", memory_gb=24.0), load_model("qwen3-0.6b")
    memory = trainer_of(config, model)
    assert config.actor_rollout_ref.rollout.gpu_memory_utilization <= memory.engine_share(24e9, keeps_kv=False)
    assert memory.state_bytes + memory.activation_bytes < 0.7 * 24e9
    room = re.search(r"room for ([\d,]+) tokens", _kv_room(config, model, gpu))
    assert room is not None and int(room[1].replace(",", "")) > 40 * config.actor_rollout_ref.rollout.max_model_len


@pytest.mark.parametrize(("flag", "module"), [("REHEARSE", "lab.rehearse"), ("CHECK", "lab.check")])
def test_given_several_nodes_when_rehearsed_or_checked_then_the_same_run_is_without_a_cluster(
    data_home, tmp_path, flag, module
):
    trained = run_script(
        SCRIPT, folder=tmp_path, DATA_HOME=data_home, NNODES="2", RAY_ADDRESS="a:1", CKPTS_DIR="/shared"
    )
    only = {flag: "1"}
    tried = run_script(SCRIPT, folder=tmp_path, DATA_HOME=data_home, NNODES="2", CKPTS_DIR="/shared", **only)
    assert tried.stdout == trained.stdout.replace("lab.train", module) != trained.stdout


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "DATA_HOME: set DATA_HOME to the folder that prepare_dapo_data.sh has filled"),
        ({"DATA_HOME": "/no/such/folder"}, "/no/such/folder: No such file or directory"),
        ({"DATA_HOME": "/tmp", "NNODES": "0"}, "NNODES=0: must be a number >= 1"),
        ({"DATA_HOME": "/tmp", "NNODES": "two"}, "NNODES=two: must be a number >= 1"),
        ({"DATA_HOME": "/tmp", "NNODES": "2"}, "RAY_ADDRESS: set RAY_ADDRESS to the head of a Ray cluster"),
        *(({"DATA_HOME": "/tmp", flag: "yes"}, f"{flag}=yes: must be 0 or 1") for flag in ("REHEARSE", "CHECK")),
        ({"DATA_HOME": "/tmp", "NNODES": "2", "RAY_ADDRESS": "a:1"}, "CKPTS_DIR: set CKPTS_DIR to a folder that all"),
    ],
    ids=str,
)
def test_given_a_bad_environment_when_run_then_it_is_refused_before_python_starts(tmp_path, environment, message):
    done = run_script(SCRIPT, folder=tmp_path, **environment)
    assert done.returncode != 0 and not done.stdout
    assert message in done.stderr
