"""Agent programs that nobody here wrote, in an environment of their own, behind a scripted model."""

import asyncio
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo.extensions.gateway.agent_host import AgentHost
from recipe.async_dapo.extensions.gateway.server import Gateway

from ..support.world import Life, check_rows, new_group, shown, texts

EXAMPLES = Path(__file__).parents[4] / "examples" / "agent_program"
CALL = 'I add. <tool_call>{"name": "add",  "arguments": {"a":1,"b":2}}</tool_call>'
CHAIN = f"[{CALL}<|im_end|>]\n<|im_start|>t\n3<|im_end|>\n<|im_start|>a\n[3<|im_end|>]"


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
@pytest.mark.parametrize("name", ["pydantic_agent.py", "agents_sdk.py"])
def test_given_a_program_from_the_package_index_then_its_turns_with_a_tool_are_one_chain(
    python: str, name: str
) -> None:
    says = texts(CALL, "3")

    async def main() -> Any:
        life, group = Life(None, n=1, http=True, says=says, command=[python, str(EXAMPLES / name)]), new_group(1)
        try:
            return await asyncio.wait_for(life.round(group), 120), group
        finally:
            await life.end()
            await (await Gateway.at("127.0.0.1")).stop()
            await AgentHost.of("commands").stop()

    outcome, group = asyncio.run(main())
    assert not outcome.reason, outcome.cause
    check_rows(group, says)
    assert shown(group) == [CHAIN]
    output = group.trajectories[0].outputs[-1].rest
    assert (output.reward_score, output.extra_fields["reward_extra_info"]["said"]) == (1.0, "3")
