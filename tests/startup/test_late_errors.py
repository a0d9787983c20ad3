"""What once ended a run after minutes, in a worker or a server, is refused before Ray starts."""

import sys
from types import SimpleNamespace

import pytest

from recipe.async_dapo.config import AsyncDAPOConfig, ConfigError
from recipe.async_dapo.startup import option_check, output_check
from recipe.async_dapo.startup.agent_loop_check import check_agent_loop
from recipe.async_dapo.startup.overrides import compose_overrides
from recipe.async_dapo.startup.preflight import check_all, checks_of, findings

from ..support.composed_runs import refusal, rows, valid_overrides, write_parquet

ROLLOUT = "actor_rollout_ref.rollout."
KWARGS = ROLLOUT + "engine_kwargs.vllm."

# (overrides, how the message begins)
LATE_ERRORS = [
    (["trainer.logger=[console,wandbb]"], "trainer.logger=wandbb: must be one of wandb, mlflow,"),
    (["trainer.logger=tensorbord"], "trainer.logger=tensorbord: must be one of"),
    (
        ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/nowhere/global_step_3"],
        "trainer.resume_from_path=/nowhere/global_step_3: /nowhere/global_step_3",
    ),
    (
        ["trainer.resume_from_path=/nowhere/global_step_3"],
        "trainer.resume_from_path=/nowhere/global_step_3: is ignored with trainer.resume_mode=auto",
    ),
    (["algorithm.adv_estimator=grop"], "algorithm.adv_estimator=grop: must be one of "),
    (
        ["algorithm.adv_estimator=gae", "critic.model.path=/no/critic", "critic.strategy=fsdp2"],
        "critic.model.path=/no/critic: no such folder, and algorithm.adv_estimator=gae",
    ),
    (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=vanila"],
        "actor_rollout_ref.actor.policy_loss.loss_mode=vanila: must be one of ",
    ),
    (
        ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_type=low_var"],
        "actor_rollout_ref.actor.kl_loss_type=low_var: must be one of ",
    ),
    (["reward.reward_manager.name=dapoo"], "reward.reward_manager.name=dapoo: must be one of "),
    (
        [ROLLOUT + "pipeline_model_parallel_size=2", "trainer.n_gpus_per_node=2"],
        ROLLOUT + "pipeline_model_parallel_size=2: must be 1: verl does not hand it to vLLM",
    ),
    (
        ["++" + ROLLOUT + "temprature=0.7"],
        ROLLOUT + "temprature=0.7: verl has no such option; did you mean temperature?",
    ),
    (
        ["++actor_rollout_ref.actor.optim.learning_rate=1e-6"],
        "actor_rollout_ref.actor.optim.learning_rate=1e-06: verl has no such option",
    ),
    ([ROLLOUT + "agent.default_agent_loop=tool_agnt"], ROLLOUT + "agent.default_agent_loop=tool_agnt: must be one of "),
    (
        [ROLLOUT + "agent.agent_loop_config_path=/no/loops.yaml"],
        ROLLOUT + "agent.agent_loop_config_path=/no/loops.yaml: no such file",
    ),
    (
        [ROLLOUT + "multi_turn.function_tool_path=/no/tools.py"],
        ROLLOUT + "multi_turn.function_tool_path=/no/tools.py: no such file",
    ),
    (
        [ROLLOUT + "multi_turn.tool_config_path=/no/tools.yaml"],
        ROLLOUT + "multi_turn.tool_config_path=/no/tools.yaml: no such file",
    ),
    (
        [ROLLOUT + "agent.default_agent_loop=tool_agent", ROLLOUT + "multi_turn.format=herms"],
        ROLLOUT + "multi_turn.format=herms: must be one of ",
    ),
]

ENGINE_ARGUMENTS = [
    (
        "logprobs_mode=raw_logprobs",
        "would take the place of actor_rollout_ref.rollout.logprobs_mode=processed_logprobs",
    ),
    ("max_model_len=48", "would take the place of actor_rollout_ref.rollout.max_model_len=None"),
    ("max_num_seqs=2000", "would take the place of actor_rollout_ref.rollout.max_num_seqs="),
    ("tensor_parallel_size=2", "would take the place of actor_rollout_ref.rollout.tensor_model_parallel_size=1"),
    ("data_parallel_size=2", "would take the place of actor_rollout_ref.rollout.data_parallel_size=1"),
    ("pipeline_parallel_size=2", "would take the place of actor_rollout_ref.rollout.pipeline_model_parallel_size=1"),
    ("worker_extension_cls=mine.Extension", "is the recipe's own"),
    ("stream_interval=0", "must be a whole number of tokens, >= 1"),
    ("kv_cache_dtyp=fp8", "vLLM has no such argument; did you mean kv_cache_dtype?"),
    ("max-num-seqs=2000", "would take the place of actor_rollout_ref.rollout.max_num_seqs="),
]

DID_YOU_MEAN = [
    ("async_dapo.rollout_strategy=partail", "did you mean partial?"),
    ("async_dapo.stop_rule=fifoo", "did you mean fifo?"),
    ("+async_dapo.max_stalenes=3", "did you mean max_staleness?"),
    ("trainer.logger=tensorbord", "did you mean tensorboard?"),
    ("algorithm.adv_estimator=grop", "did you mean grpo?"),
    (ROLLOUT + "agent.default_agent_loop=tool_agnt", "did you mean tool_agent?"),
]


@pytest.mark.parametrize(("overrides", "message"), LATE_ERRORS, ids=[" ".join(o) for o, _ in LATE_ERRORS])
def test_a_late_error_comes_at_start_up(run, overrides, message):
    assert refusal(run, *overrides).startswith(message)


@pytest.mark.parametrize(("argument", "message"), ENGINE_ARGUMENTS)
def test_an_argument_of_vllm_is_checked_like_the_option_that_it_overrides(run, argument, message):
    key, value = argument.split("=")
    assert refusal(run, f"++{KWARGS}{argument}").startswith(f"{KWARGS}{key}={value}: {message}")


def test_arguments_of_vllm_that_repeat_an_option_or_have_none_are_accepted(run):
    check_all(run(f"++{KWARGS}max_num_seqs=256", f"++{KWARGS}kv_cache_dtype=fp8", f"++{KWARGS}seed=null"))


@pytest.mark.parametrize(("override", "hint"), DID_YOU_MEAN)
def test_a_typo_in_a_name_is_answered_with_the_name_that_was_meant(run, override, hint):
    assert hint in refusal(run, override)


def test_a_logger_without_its_package_is_refused(run, monkeypatch):
    monkeypatch.setattr(option_check, "find_spec", lambda package: None)
    assert refusal(run, "trainer.logger=[wandb]").startswith(
        "trainer.logger=wandb: needs the package wandb, which is not installed"
    )


@pytest.mark.parametrize(
    ("override", "key", "hint"),
    [
        ("trainer.total_training_step=3", "trainer.total_training_step", "did you mean trainer.total_training_steps?"),
        ("async_dapo.train_batch_size=8", "async_dapo.train_batch_size", "did you mean data.train_batch_size?"),
        ("rollout.n=8", "rollout.n", "did you mean actor_rollout_ref.rollout.n?"),
        ("model_engine=fsdp", "model_engine", "must be one of dp, megatron"),
        ("data.train_batch_size", "override", "Hydra cannot read it: "),
        ("trainer.logger=[console", "override", "Hydra cannot read it: "),
    ],
)
def test_a_key_that_does_not_exist_is_answered_before_anything_is_built(override, key, hint):
    with pytest.raises(ConfigError) as refused:
        compose_overrides(["data.train_batch_size=8", override])
    assert str(refused.value).startswith(f"{key}=") and hint in str(refused.value)


def test_an_agent_loop_that_cannot_be_imported_is_refused_with_the_reason(run, tmp_path, monkeypatch):
    (tmp_path / "loops_of_mine.py").write_text("import package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "loops.yaml"
    overrides = (f"{ROLLOUT}agent.agent_loop_config_path={file}", f"{ROLLOUT}agent.default_agent_loop=mine")
    for target, reason in (
        ("loops_of_mine.Mine", "No module named 'package_that_is_not_there'"),
        ("no_such_module.Mine", "no_such_module"),
        ("pathlib.Path", "has no method `run`"),
    ):
        file.write_text(f"- name: mine\n  _target_: {target}\n")
        message = refusal(run, *overrides)
        assert message.startswith(f"{ROLLOUT}agent.agent_loop_config_path, `_target_` of mine={target}: ")
        assert reason in message
    file.write_text("name: mine\n")
    assert "must hold a list of entries with `name` and `_target_`" in refusal(run, *overrides)
    file.write_text("- [\n")
    assert "is not YAML" in refusal(run, *overrides)


def test_an_agent_loop_of_a_module_that_ray_ships_is_found_where_it_is(run, tmp_path):
    (tmp_path / "modules" / "shipped_loops").mkdir(parents=True)
    (tmp_path / "modules" / "shipped_loops" / "__init__.py").write_text("class Mine:\n    def run(self): ...\n")
    file = tmp_path / "loops.yaml"
    file.write_text("- name: mine\n  _target_: shipped_loops.Mine\n")
    overrides = (f"{ROLLOUT}agent.agent_loop_config_path={file}", f"{ROLLOUT}agent.default_agent_loop=mine")
    before = list(sys.path)
    assert "`_target_` of mine=shipped_loops.Mine: cannot be imported" in refusal(run, *overrides)
    shipped = f"+ray_kwargs.ray_init.runtime_env.py_modules=[{tmp_path}/modules/shipped_loops]"
    check_agent_loop(run(*overrides, shipped))
    assert sys.path == before


def test_an_agent_loop_that_the_data_names_is_looked_up(run, tmp_path):
    data = write_parquet(tmp_path / "train.parquet", [row | {"agent_name": "my_agent"} for row in rows(16)])
    message = refusal(run, f"data.train_files={data}")
    assert message.startswith("data.train_files, column agent_name=my_agent: must be one of ")


def test_tools_that_cannot_be_loaded_are_refused_with_the_line(run, tmp_path):
    tools = tmp_path / "tools.py"
    tools.write_text("\n1 / 0\n")
    message = refusal(run, f"{ROLLOUT}multi_turn.function_tool_path={tools}")
    assert "its tools cannot be loaded: ZeroDivisionError: division by zero" in message
    assert f"({tools}, line 2)" in message
    (tmp_path / "none.py").write_text("")
    assert "holds no tool" in refusal(run, f"{ROLLOUT}multi_turn.function_tool_path={tmp_path}/none.py")
    (tmp_path / "tools.yaml").write_text("tools:\n  - class_name: no_such.Tool\n    config: {type: native}\n")
    assert "its tools cannot be loaded" in refusal(run, f"{ROLLOUT}multi_turn.tool_config_path={tmp_path}/tools.yaml")


@pytest.mark.parametrize(
    "option", ["trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.default_local_dir"]
)
def test_an_output_folder_that_cannot_be_made_is_refused(run, tmp_path, option):
    (tmp_path / "file").touch()
    message = refusal(run, f"{option}={tmp_path}/file/outputs", "trainer.save_freq=5")
    assert message.startswith(f"{option}={tmp_path}/file/outputs: {tmp_path}/file is a file")


def test_a_folder_that_is_not_this_users_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)
    message = refusal(run, f"trainer.rollout_data_dir={tmp_path}/outputs")
    assert message == (
        f"trainer.rollout_data_dir={tmp_path}/outputs: this user may not write to {tmp_path}; name another folder, or "
        "make it writable"
    )


SAVES = ("trainer.save_freq=5", "trainer.nnodes=2", "trainer.n_gpus_per_node=1")


def disk_has(monkeypatch: pytest.MonkeyPatch, free_bytes: float) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free_bytes, total=1e12))


def test_a_full_disk_is_refused_with_its_name(run, tmp_path, monkeypatch):
    disk_has(monkeypatch, free_bytes=50e6)
    message = refusal(run, f"trainer.rollout_data_dir={tmp_path}/outputs")
    assert message.startswith(f"trainer.rollout_data_dir={tmp_path}/outputs: the disk mounted at /")
    assert "(0.1 GB of 1,000.0 GB free) is full; free some space, or name a folder on another disk" in message


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([], 3),  # weights, and two moments of each
        (["actor_rollout_ref.model.lora_rank=8"], 1),
        (["actor_rollout_ref.actor.checkpoint.save_contents=[model,extra]"], 1),
        (["actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16"], 1.5),
    ],
    ids=str,
)
def test_a_disk_without_room_for_the_first_checkpoint_is_refused(run, tmp_path, monkeypatch, overrides, parts):
    monkeypatch.setattr(output_check, "LEAST_BYTES", 0)
    whole = output_check._checkpoint_bytes(run())
    assert whole is not None
    size = parts * whole / 3
    config = run(*SAVES, f"trainer.default_local_dir={tmp_path}", *overrides)
    disk_has(monkeypatch, free_bytes=0.49 * size)  # each of the two nodes writes its half
    with pytest.raises(ConfigError, match=f"trainer.default_local_dir={tmp_path}: a checkpoint takes at least "):
        output_check.check_output_folders(config)
    disk_has(monkeypatch, free_bytes=0.51 * size)
    assert "all are kept: set trainer.max_actor_ckpt_to_keep" in output_check.check_output_folders(config)
    config.trainer.max_actor_ckpt_to_keep = 2
    assert "3 at a time" in output_check.check_output_folders(config)


def test_of_a_model_that_the_planner_does_not_know_only_the_disk_is_told(run, tmp_path, monkeypatch):
    config = run(*SAVES, f"trainer.default_local_dir={tmp_path}")
    config.actor_rollout_ref.model.path = "someone/unknown"
    assert output_check.check_output_folders(config).startswith("checkpoints go to the disk mounted at /")
    assert output_check.check_output_folders(run()) == ""  # none are written


def test_loggers_files_are_looked_at_where_the_environment_puts_them(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORBOARD_DIR", f"{tmp_path}/file/board")
    assert refusal(run).startswith(f"TENSORBOARD_DIR={tmp_path}/file/board: ")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", f"{tmp_path}/file/metrics.jsonl")
    assert refusal(run, "trainer.logger=file").startswith(f"VERL_FILE_LOGGER_PATH={tmp_path}/file/metrics.jsonl: ")


def test_every_check_runs_whatever_became_of_the_others(run):
    config = run("trainer.logger=no", "data.train_files=no")
    found = {finding.name: finding.error for finding in findings(config)}
    assert list(found) == ["versions", "async_dapo options", *checks_of(config, AsyncDAPOConfig.from_hydra(config))]
    assert {name for name, error in found.items() if error} == {"algorithm", "data"}


def test_without_readable_options_no_other_check_runs(files):
    found = list(findings(compose_overrides([*valid_overrides(files), "async_dapo.stop_rule=x"])))
    assert [finding.name for finding in found] == ["versions", "async_dapo options"]
