"""What once ended a run after minutes, in a worker or a server, is refused before Ray starts."""

import sys

import pytest

from recipe.async_dapo.startup.agent_loop_check import check_agent_loop

from ..support.composed_runs import refusal, rows, write_lines, write_parquet

ROLLOUT = "actor_rollout_ref.rollout."
LOOPS, TOOLS = "agent.agent_loop_config_path", "multi_turn.function_tool_path"
NATIVE = "tools:\n  - class_name: no_such.Tool\n    config: {type: native}\n"


@pytest.mark.parametrize(
    ("option", "name", "text", "said"),
    [
        (LOOPS, "a.yaml", "- {name: mine, _target_: no_such.Mine}", "of mine=no_such.Mine: cannot be imported: "),
        (LOOPS, "a.yaml", "- {name: mine, _target_: pathlib.Path}", "of mine=pathlib.Path: has no method `run`"),
        (LOOPS, "a.yaml", "name: mine", "a.yaml: must hold a list of entries with `name` and `_target_`"),
        (LOOPS, "a.yaml", "- [", "a class: ParserError: "),
        (TOOLS, "a.py", "\n1 / 0\n", "cannot be loaded: ZeroDivisionError: division by zero ({file}, line 2)"),
        (TOOLS, "a.py", "", "a.py: holds no tool"),
        ("multi_turn.tool_config_path", "a.yaml", NATIVE, "a.yaml: its tools cannot be loaded: "),
    ],
)
def test_what_a_worker_could_not_load_is_refused_with_the_reason(run, tmp_path, option, name, text, said):
    (file := tmp_path / name).write_text(text)
    used = [f"{ROLLOUT}agent.default_agent_loop=mine"] if option == LOOPS else []
    assert said.format(file=file) in refusal(run, f"{ROLLOUT}{option}={file}", *used)


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


@pytest.mark.parametrize(("name", "write"), [("train.parquet", write_parquet), ("train.jsonl", write_lines)])
def test_an_agent_loop_that_the_data_names_is_looked_up(run, tmp_path, name, write):
    data = write(tmp_path / name, [row | {"agent_name": "my_agent"} for row in rows(16)])
    message = refusal(run, f"data.train_files={data}")
    assert message.startswith("data.train_files, column agent_name=my_agent: must be one of ")


def test_a_folder_that_is_not_this_users_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)
    message = refusal(run, f"trainer.rollout_data_dir={tmp_path}/outputs")
    assert message == (
        f"trainer.rollout_data_dir={tmp_path}/outputs: this user may not write to {tmp_path}; name another folder, or "
        "make it writable"
    )


def test_loggers_files_are_looked_at_where_the_environment_puts_them(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORBOARD_DIR", f"{tmp_path}/file/board")
    assert refusal(run).startswith(f"TENSORBOARD_DIR={tmp_path}/file/board: ")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", f"{tmp_path}/file/metrics.jsonl")
    assert refusal(run, "trainer.logger=file").startswith(f"VERL_FILE_LOGGER_PATH={tmp_path}/file/metrics.jsonl: ")


@pytest.mark.parametrize("name", ["nowhere.Recorder", "Recorder"])
def test_given_a_recorder_that_is_not_found_when_checked_then_it_is_named(run, name):
    assert refusal(run, f"async_dapo.recorder={name}").startswith(f"async_dapo.recorder={name}: no such module; name a")
