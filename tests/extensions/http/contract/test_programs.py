"""Agent programs that nobody here wrote, in an environment of their own, behind a scripted model."""

import subprocess
import venv
from pathlib import Path

import pytest

from recipe.async_dapo.config.extensions import declared

from ...gateway.support.played import play
from ...gateway.support.world import check_rows, shown, texts

EXAMPLES = Path(__file__).parents[4] / "examples" / "agent_program"
CALL = 'I add. <tool_call>{"name": "add",  "arguments": {"a":1,"b":2}}</tool_call>'
CHAIN = f"[{CALL}<|im_end|>]\n<|im_start|>t\n3<|im_end|>\n<|im_start|>a\n[3<|im_end|>]"
# The examples use OpenAI's API of responses, as both do by default; so they use that of chat completions.
BY_CHAT = {
    "pydantic_agent.py": ('"openai:policy"', '"openai-chat:policy"'),
    "agents_sdk.py": ("set_tracing_disabled(True)", "set_tracing_disabled(True); chat('chat_completions')"),
}
APIS = ("chat_completions", "responses")
IMPORTED = "from agents import set_default_openai_api as chat\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with what the examples need, from the package index."""
    folder = tmp_path_factory.mktemp("agents")
    venv.create(folder, with_pip=True)
    program = str(folder / "bin" / "python")
    requirements = str(EXAMPLES / "requirements.txt")
    subprocess.run([program, "-m", "pip", "install", "--quiet", "-r", requirements], check=True, timeout=900)
    return program


@pytest.mark.nightly
@pytest.mark.skipif(not {"agent_programs", "chains", "reply_formats"} <= declared().keys(), reason="it lacks one")
@pytest.mark.parametrize("is_chat", [name == "chat_completions" for name in APIS if name in declared()])
@pytest.mark.parametrize("name", BY_CHAT)
def test_given_a_program_from_the_package_index_then_its_turns_with_a_tool_are_one_chain(
    python: str, name: str, is_chat: bool, tmp_path: Path
) -> None:
    program, says = (EXAMPLES / name).read_text(), texts(CALL, "3")
    if is_chat:
        before, after = BY_CHAT[name]
        assert before in program
        program = program.replace(before, after)
        program = IMPORTED + program if name == "agents_sdk.py" else program
    (tmp_path / name).write_text(program)
    outcome, group, _ = play(None, limit_s=120, says=says, command=[python, str(tmp_path / name)])
    assert not outcome.reason, outcome.cause
    check_rows(group, says)
    assert shown(group) == [CHAIN]
    output = group.trajectories[0].outputs[-1].rest
    assert (output.reward_score, output.extra_fields["reward_extra_info"]["said"]) == (1.0, "3")
