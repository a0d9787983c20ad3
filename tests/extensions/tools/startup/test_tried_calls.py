"""Calls that the user names are made once before anything starts: `check` says what came of each."""

import re
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from verl.tools import function_tool
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from examples.http_tools.service import Services
from recipe.async_dapo.calls import call_id
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError, ConfigErrors
from recipe.async_dapo.extensions.tools import tried_calls
from recipe.async_dapo.startup.preflight import checks_of

from ....support.composed_runs import of_options
from ....support.documents import ROOT

TOOLS = "actor_rollout_ref.rollout.multi_turn."
FUNCTIONS = f"{TOOLS}function_tool_path"
OWN = """
import sys, time
from verl.tools.function_tool import function_tool

@function_tool
def leave(code: int) -> str:
    \"\"\"Leave.

    Args:
        code: A number.
    \"\"\"
    sys.exit(code)

@function_tool
def wait(seconds: float) -> str:
    \"\"\"Wait.

    Args:
        seconds: How long.
    \"\"\"
    time.sleep(seconds)
    return "slept"

@function_tool
async def block(seconds: float) -> str:
    \"\"\"Hold up the event loop.

    Args:
        seconds: How long.
    \"\"\"
    time.sleep(seconds)
    return "slept"

@function_tool
def take(items: int) -> str:
    \"\"\"Take one item more than there is.

    Args:
        items: A number.
    \"\"\"
    return next(iter([]))
"""
INSTANCES = """
tools:
  - class_name: tests.extensions.tools.startup.test_tried_calls.Till
    config: {type: native}
    tool_schema:
      type: function
      function: {name: till, description: Takes money., parameters: {type: object, properties: {}, required: []}}
"""


class Till(BaseTool):
    """A tool with instances, as verl has them."""

    open: ClassVar[list[str]] = []

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        made_id, response = await super().create(instance_id)
        self.open.append(made_id)
        return made_id, response

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        assert instance_id in self.open and not kwargs["agent_data"].extra_fields
        if parameters["coins"] == "text":
            return "text"  # type: ignore[return-value]
        if parameters["coins"] == "picture":
            return ToolResponse(image=["a picture"]), 0.0, {}
        return ToolResponse(text=f"{parameters['coins']} for {call_id()}"), 0.5, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.open.remove(instance_id)


@pytest.fixture(autouse=True)
def tools_of_other_tests_are_unknown(monkeypatch) -> None:
    """verl refuses a second tool of one name in a process."""
    monkeypatch.setattr(function_tool, "FUNCTION_TOOL_REGISTRY", {})
    monkeypatch.setattr(function_tool, "_LOADED_FUNCTION_TOOL_PATHS", {})


def tried(run, *overrides: str) -> str:
    config = run(*overrides)
    assert not of_options(config)
    note = checks_of(config, AsyncDAPOConfig.from_hydra(config))["calls of tools"]()
    assert note is not None
    return note


@pytest.fixture
def services(monkeypatch) -> Iterator[str]:
    """Those of the example; returns its file of tools."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Services) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("TOOLS_SERVICE", f"http://127.0.0.1:{server.server_address[1]}")
        yield f"{FUNCTIONS}={ROOT}/examples/http_tools/tools.py"
        server.shutdown()


def test_of_two_tools_over_http_the_broken_one_is_named_with_its_answer_and_place(run, services):
    assert tried(run, services, "async_dapo.calls.check={add:{first:1,second:2}}").startswith("add: '3' in ")
    with pytest.raises(ConfigError) as error:
        tried(run, services, "async_dapo.calls.check={add:{first:1,second:2},look_up:{page:1}}")
    said = str(error.value)
    assert said.startswith("async_dapo.calls.check.look_up={'page': 1}: failed: 503, message='the index is not")
    assert re.search(r" at tools\.py:\d+; in a run the model would read this", said)


def test_a_tool_that_is_not_there_wrong_arguments_an_exit_and_no_answer_each_have_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tried_calls, "LONGEST_S", 5.0)  # what answers at once does so on a busy machine, too
    (tmp_path / "own.py").write_text(OWN)
    asked = "{leav:{code:3},leave:{code:3},take:{items:1},wait:{seconds:600},block:{seconds:600}}"
    with pytest.raises(ConfigErrors) as found:
        tried(run, f"{FUNCTIONS}={tmp_path}/own.py", f"async_dapo.calls.check={asked}")
    absent, left, taken, slow, blocks = map(str, found.value.errors)
    assert "must be one of block, leave, take, wait; did you mean leave?" in absent
    assert "async_dapo.calls.check.leave={'code': 3}: failed: SystemExit(3)" in left
    assert re.search(r"check\.take=\{'items': 1\}: failed: StopIteration\(\) at own\.py:\d+", taken)
    assert "async_dapo.calls.check.wait={'seconds': 600}: no answer within 5 s" in slow
    assert "async_dapo.calls.check.block={'seconds': 600}: no answer within 5 s" in blocks
    with pytest.raises(ConfigError, match="unexpected keyword argument 'second'"):
        tried(run, f"{FUNCTIONS}={tmp_path}/own.py", "async_dapo.calls.check={wait:{second:1}}")


@pytest.mark.parametrize("has_checks", [True, False])
def test_a_file_that_cannot_be_loaded_is_told_once_in_a_copy_without_checks_too(run, tmp_path, monkeypatch, has_checks):
    monkeypatch.setattr(tried_calls, "declared", lambda: {"agents", "checks"} if has_checks else {"agents"})
    (tmp_path / "own.py").write_text("import no_such_module")
    config = run(f"{FUNCTIONS}={tmp_path}/own.py", "async_dapo.calls.check={leave:{code:3}}")
    check = checks_of(config, AsyncDAPOConfig.from_hydra(config))["calls of tools"]
    if has_checks:
        assert check() == "not tried: the tools cannot be loaded"
        return
    with pytest.raises(ConfigError, match=rf"^{FUNCTIONS}=.*own\.py: its tools cannot be loaded: .*no_such_module"):
        check()


def test_a_tool_with_instances_is_created_called_and_released(run, tmp_path):
    (tmp_path / "tools.yaml").write_text(INSTANCES)
    note = tried(run, f"{TOOLS}tool_config_path={tmp_path}/tools.yaml", "async_dapo.calls.check={till:{coins:3}}")
    assert note.startswith("till: '3 for async_dapo.calls.check.till' in ") and Till.open == []


@pytest.mark.parametrize(
    ("coins", "told"),
    [
        (
            "text",
            "failed: execute returns 'text', and not a ToolResponse, .*in a run the model would read.*no create_kwargs",
        ),
        ("picture", "failed: .*has answered with a picture or video.*it would end a run"),
    ],
)
def test_an_answer_that_a_run_could_not_take_is_refused(run, tmp_path, coins, told):
    (tmp_path / "tools.yaml").write_text(INSTANCES)
    with pytest.raises(ConfigError, match=told):
        tried(
            run, f"{TOOLS}tool_config_path={tmp_path}/tools.yaml", f"async_dapo.calls.check={{till:{{coins:{coins}}}}}"
        )
    assert Till.open == []


@pytest.mark.parametrize("value", ["add", "{}", "{add:1}", "[add]"])
def test_other_values_are_refused_with_what_is_meant(run, services, value):
    [error] = of_options(run(services, f"async_dapo.calls.check={value}"))
    assert error.startswith("async_dapo.calls.check=") and "{TOOL: {ARGUMENT: VALUE}}" in error
