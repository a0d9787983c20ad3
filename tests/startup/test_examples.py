"""The examples of `docs/your_own.md` and `docs/agents.md` do what the pages say."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, load_function_tools_from_path

from examples.agent_loop import guessing
from examples.judged_reward import judge, judged_reward
from examples.tools import booking, tiny_model
from recipe.async_dapo.calls import running_call_id
from recipe.async_dapo.config.extensions import AGENTS, TOOLS, declared
from recipe.async_dapo.startup.preflight import check_all

from ..support.composed_runs import needs_checks, refusal

EXAMPLES = Path(judge.__file__).parents[1]
REWARD_OPTION = "reward.custom_reward_function"


@pytest.fixture
def judge_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), judge.Judge) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/judge"
        server.shutdown()
        thread.join()


def test_the_reward_function_that_waits_passes_the_checks_at_start_up(run, judge_url) -> None:
    judged = f"{REWARD_OPTION}.path={EXAMPLES}/judged_reward/judged_reward.py"
    check_all(run(judged, f"+{REWARD_OPTION}.reward_kwargs.judge_url={judge_url}"))
    assert asyncio.run(judged_reward.compute_score("sums", "42", "42", judge_url=judge_url))["acc"] == 1.0
    assert asyncio.run(judged_reward.compute_score("sums", "41", "42", judge_url=judge_url))["acc"] == 0.0


@pytest.mark.parametrize(("name", "arguments"), [("add", {"first": 95, "second": 4}), ("book", {"seat": 95})])
def test_a_working_of_the_tiny_model_is_a_call_of_the_tool(name, arguments) -> None:
    class Tokenizer:
        def decode(self, ids: list[int], **_: object) -> str:
            return "02:5_5 01:5_9"

    load_function_tools_from_path(str(EXAMPLES / "tools" / "tools.py"))
    schemas = [FUNCTION_TOOL_REGISTRY[name].tool_schema]
    _, [call] = asyncio.run(tiny_model.WorkingParser(Tokenizer()).extract_tool_calls([], schemas))
    assert (call.name, json.loads(call.arguments)) == (name, arguments)
    assert tiny_model.compute_score("carry", "02:5_5 01:5_9tool 99", "02:5_5 01:5_9")["acc"] == 1.0
    assert tiny_model.compute_score("carry", "02:5_5", "02:5_5 01:5_9")["acc"] == 0.0


def test_the_tool_that_must_not_act_twice_knows_its_calls(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(booking, "DATABASE", str(tmp_path / "bookings.sqlite"))
    token = running_call_id.set("group/0/1/book/0")
    with pytest.raises(LookupError):
        booking.booked("group/0/1/book/0")
    assert booking.book(12) == booking.booked("group/0/1/book/0") == "seat 12 is booked"
    with pytest.raises(sqlite3.IntegrityError):
        booking.book(12)
    running_call_id.reset(token)


def test_the_environment_answers_every_guess() -> None:
    answers = [asyncio.run(guessing.judge(50, text)) for text in ("49", "50 or 51", "no 7, then 50", "none")]
    assert answers == ["Too low.", "Too high.", "Right.", "Say a number."]


ROLLOUT = "actor_rollout_ref.rollout"
TOOL_AGENT = (f"{ROLLOUT}.agent.default_agent_loop=tool_agent", f"{ROLLOUT}.multi_turn.format=hermes")


@pytest.mark.skipif(not {AGENTS, TOOLS} <= declared().keys(), reason="this copy refuses tools, and loops with a state")
@needs_checks
@pytest.mark.parametrize(
    ("option", "file", "others"),
    [
        *(
            (
                "agent.agent_loop_config_path",
                "agent_loop/agent_loops.yaml",
                [f"{ROLLOUT}.agent.default_agent_loop={name}"],
            )
            for name in ("checked_answer", "guessing", "coding")
        ),
        ("multi_turn.function_tool_path", "tools/tools.py", TOOL_AGENT),
        ("multi_turn.tool_config_path", "tools/mcp_tools.yaml", TOOL_AGENT),
    ],
)
def test_agent_loops_and_tools_pass_the_checks_at_start_up(run, tmp_path, option, file, others) -> None:
    check_all(run(f"{ROLLOUT}.{option}={EXAMPLES / file}", *others))
    (tmp_path / Path(file).name).touch()  # as if it were empty
    refusal(run, f"{ROLLOUT}.{option}={tmp_path / Path(file).name}", *others)
