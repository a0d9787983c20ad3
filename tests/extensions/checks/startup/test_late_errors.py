"""What once ended a run after minutes, in a worker or a server, is refused before Ray starts."""

import sys

import pytest

from recipe.async_dapo.config.extensions import PACKAGE, declared, missing
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.checks.loops_and_tools import check_loops_and_tools, import_loop
from recipe.async_dapo.startup.preflight import check_all, findings

from ....support.composed_runs import REWARD_FUNCTION, refusal, rows, write_lines, write_parquet

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


SHIPPED = '''
class Loop:
    def run(self): ...

class Tool:
    def __init__(self, config, tool_schema):
        self.tool_schema, self.name = tool_schema, tool_schema.function.name

class Recorder: ...

def say(what: str) -> str:
    """Say it.

    Args:
        what: that
    """
    return what

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    import NAME.further
    return {"score": 1.0, "acc": 1.0}
'''
NATIVE_TOOL = """
tools:
  - class_name: NAME.Tool
    config: {type: native}
    tool_schema:
      type: function
      function: {name: NAME, description: that, parameters: {type: object, properties: {}, required: []}}
"""
FUNCTION = "import NAME\nfrom verl.tools.function_tool import function_tool\nfunction_tool('NAME')(NAME.say)\n"
OWN_REWARD = "reward.custom_reward_function.path="
IN_A_MODULE = {  # what is written to a file, the file, an override that names it or the module
    "loop": ("- name: mine\n  _target_: NAME.Loop\n", "loops.yaml", f"{ROLLOUT}{LOOPS}=FILE"),
    "tool": (NATIVE_TOOL, "tools.yaml", f"{ROLLOUT}multi_turn.tool_config_path=FILE"),
    "function": (FUNCTION, "tools.py", f"{ROLLOUT}{TOOLS}=FILE"),
    "reward": ("from NAME import compute_score\n", "reward.py", f"{OWN_REWARD}FILE"),
    "own_reward": ("", "none", f"{OWN_REWARD}pkg://NAME"),
    "recorder": ("", "none", "async_dapo.recorder=NAME.Recorder"),
}


@pytest.mark.parametrize("what", IN_A_MODULE)
def test_what_is_in_a_module_that_ray_ships_is_found_where_it_is(run, tmp_path, what):
    text, file, override = IN_A_MODULE[what]
    module = tmp_path / "modules" / (name := f"shipped_{what}")
    module.mkdir(parents=True)
    (module / "__init__.py").write_text(SHIPPED.replace("NAME", name))
    (module / "further.py").touch()
    (tmp_path / file).write_text(text.replace("NAME", name))
    named = [override.replace("NAME", name).replace("FILE", f"{tmp_path}/{file}")]
    named += [f"{ROLLOUT}agent.default_agent_loop=mine"] if what == "loop" else []
    before = list(sys.path)
    assert refusal(run, *named).startswith(named[0].partition("=")[0])
    check_all(run(*named, f"+ray_kwargs.ray_init.runtime_env.py_modules=[{module}]"))
    assert sys.path == before


def test_a_loop_that_an_external_library_registers_is_known(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lib_with_a_loop.py").write_text(
        "from verl.experimental.agent_loop.agent_loop import register\n"
        "from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop\n"
        "register('of_a_library')(SingleTurnAgentLoop)\n"
    )
    named = f"{ROLLOUT}agent.default_agent_loop=of_a_library"
    assert refusal(run, named).startswith(f"{named}: must be one of ")
    config = run(named, "actor_rollout_ref.model.external_lib=lib_with_a_loop")
    assert "of_a_library" in check_loops_and_tools(config)


LIBRARYS_LOOP = """
import sys
from verl.experimental.agent_loop.agent_loop import AgentLoopBase

class Loop(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        raise NotImplementedError

    @staticmethod
    def check_entry(options, config):
        return [] if "lib_of_an_entry" in sys.modules else ["its library has not been imported"]
"""


@pytest.mark.skipif("agents" not in declared(), reason="a copy without it warns of any loop")
def test_external_libraries_are_imported_before_agent_loops_check_their_entries(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lib_of_an_entry.py").touch()
    (tmp_path / "loop_of_an_entry.py").write_text(LIBRARYS_LOOP)
    (tmp_path / "loops.yaml").write_text("- name: own\n  _target_: loop_of_an_entry.Loop\n")
    named = (f"{ROLLOUT}agent.default_agent_loop=own", f"{ROLLOUT}{LOOPS}={tmp_path}/loops.yaml")
    assert check_loops_and_tools(run(*named, "actor_rollout_ref.model.external_lib=lib_of_an_entry")) == "own"


def test_an_agent_loop_whose_extension_is_not_in_this_copy_is_refused_by_name() -> None:
    target = f"{PACKAGE}.absent.black_box.BlackBoxAgent"
    with pytest.raises(ConfigError, match="extensions/absent is not in this copy; copy that folder too"):
        import_loop({"name": "solver", "_target_": target}, "solver")
    assert missing("recipe.another.Loop") is None


def test_a_function_and_a_native_tool_of_one_name_are_refused(run, tmp_path, monkeypatch):
    """verl finds this in its workers, when engines are up."""
    monkeypatch.syspath_prepend(tmp_path)
    for file, text in (("of_one_name.py", SHIPPED), ("tools.yaml", NATIVE_TOOL), ("tools.py", FUNCTION)):
        (tmp_path / file).write_text(text.replace("NAME", "of_one_name"))
    multi_turn = f"{ROLLOUT}multi_turn"
    native, function = f"{multi_turn}.tool_config_path={tmp_path}/tools.yaml", f"{ROLLOUT}{TOOLS}={tmp_path}/tools.py"
    assert refusal(run, native, function) == (
        f"{function}: names tools as {multi_turn}.tool_config_path does: of_one_name; rename one of each two"
    )
    for one in (native, function):
        assert check_loops_and_tools(run(one)) == "single_turn_agent; tools of_one_name"


@pytest.mark.parametrize("home", ["~", "file://HOME", "file://~"])
def test_files_are_found_however_they_are_named(run, files, tmp_path, monkeypatch, home):
    """As those are that are shipped to other nodes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("model", "train.parquet"):
        (tmp_path / name).symlink_to(files / name)
    (tmp_path / "reward.py").write_text(REWARD_FUNCTION)
    (tmp_path / f"{tmp_path.name}.py").write_text(SHIPPED)
    (tmp_path / "tools.py").write_text(FUNCTION.replace("NAME", tmp_path.name))
    home = home.replace("HOME", str(tmp_path))
    model, data = f"actor_rollout_ref.model.path='{home}/model'", f"data.train_files=['{home}/train.parquet']"
    config = run(model, data, f"{OWN_REWARD}'{home}/reward.py'", f"{ROLLOUT}{TOOLS}='{home}/tools.py'")
    check_all(config)
    assert config.actor_rollout_ref.model.path == f"{tmp_path}/model"
    assert config.data.train_files == [f"{tmp_path}/train.parquet"]
    assert config.reward.custom_reward_function.path == f"{tmp_path}/reward.py"
    assert config.data.function_tool_path == f"{tmp_path}/tools.py"


@pytest.mark.parametrize(("name", "write"), [("train.parquet", write_parquet), ("train.jsonl", write_lines)])
def test_an_agent_loop_that_the_data_names_is_looked_up(run, tmp_path, name, write):
    data = write(tmp_path / name, [row | {"agent_name": "my_agent"} for row in rows(16)])
    message = refusal(run, f"data.train_files={data}")
    assert message.startswith("data.train_files, column agent_name=my_agent: must be one of ")


@pytest.mark.parametrize(
    "named",
    [
        "trainer.default_local_dir=s3://bucket/run",
        "trainer.rollout_data_dir=gs://bucket/run",
        "trainer.validation_data_dir=hdfs://name/run",
        "async_dapo.report_dir=s3://bucket/run",
        "global_profiler.save_path=s3://bucket/run",
        "actor_rollout_ref.model.path=s3://bucket/model",
        "reward.custom_reward_function.path=https://host/reward.py",
        f"{ROLLOUT}agent.agent_loop_config_path=hdfs://name/loops.yaml",
    ],
)
def test_a_url_that_would_be_taken_for_a_path_is_refused(run, named):
    """`s3://bucket/run` was made as a folder `./s3:`, and the run ended well."""
    found = [str(one.error) for one in findings(run(named)) if one.error is not None]
    assert [one for one in found if one.startswith(f"{named}: is a URL, and would be taken for a path")], found
