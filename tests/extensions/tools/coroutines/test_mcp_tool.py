"""A tool of a real MCP server in a process of its own: called once, over stops and a kill."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from mcp import Client
from verl.experimental.agent_loop import AgentLoopOutput
from verl.tools.tool_registry import initialize_tools_from_config

from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.tools.tools import recorded_tools

from ....support.doors import free_ports
from ....support.rollout_world import Loop, N, finished, group, outcome_of, reread, rollout
from ....support.till import lines

ROOT = Path(__file__).resolve().parents[4]
CONFIG = ROOT / "examples" / "tools" / "mcp_tools.yaml"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of the server, whose ledger is in the folder."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.support.mcp_till", str(port), str(tmp_path / "ledger.jsonl")]
    with subprocess.Popen(command, cwd=ROOT) as server:
        asyncio.run(reached(port))
        yield port
        server.kill()


async def reached(port: int) -> None:
    async with asyncio.timeout(300):
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                return
            except OSError:
                await asyncio.sleep(0.05)


async def ask(port: int, name: str, **arguments: int) -> None:
    async with Client(f"http://127.0.0.1:{port}/mcp") as client:
        await client.call_tool(name, arguments)


def paying(port: int, folder: Path, told: list[str]) -> Loop:
    """As verl's tool agent loop drives a tool of its configuration."""
    config = CONFIG.read_text().replace("http://127.0.0.1:8900/mcp", f"http://127.0.0.1:{port}/mcp")
    (folder / "tools.yaml").write_text(config.replace("multiply", "pay"))
    [tool] = recorded_tools(initialize_tools_from_config(str(folder / "tools.yaml")), timeout_s=60.0)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        instance_id, _ = await tool.create(create_kwargs={})
        try:
            response, _, _ = await tool.execute(instance_id, {"amount": 7}, agent_data=SimpleNamespace(extra_fields={}))
            told.append(response.text)
        finally:
            await tool.release(instance_id)
        return finished(trajectory)

    return loop


@pytest.mark.slow
def test_given_a_real_server_when_rounds_stop_under_its_calls_then_each_is_made_once(port, tmp_path, capsys) -> None:
    async def main() -> None:
        told: list[str] = []
        held, loop = group(), paying(port, tmp_path, told)
        for _ in range(3):
            running = rollout(loop)
            task = asyncio.create_task(running.run(held))
            await ask(port, "wait_for", calls=N)
            running.running.interrupt()
            assert await task is None
        saved = reread(held)
        await ask(port, "answer")
        assert (await outcome_of(rollout(loop), held)).verdict is Verdict.VALID
        assert told == ["7 paid"] * N
        calls = [line["call"] for line in lines(tmp_path / "ledger.jsonl")]
        assert len(calls) == len(set(calls)) == N
        assert (await outcome_of(rollout(paying(port, tmp_path, told)), saved)).verdict is Verdict.VALID
        again = [line["call"] for line in lines(tmp_path / "ledger.jsonl")][N:]
        assert sorted(again) == sorted(calls), "after a kill it is made again, under the same id"

    asyncio.run(asyncio.wait_for(main(), 300))
