"""A tool of a real MCP server in a process of its own: called once, over stops and a kill, and told of its death."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client
from verl.experimental.agent_loop import AgentLoopOutput
from verl.tools.tool_registry import initialize_tools_from_config

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.rollout.group_rollout import GroupRollout
from recipe.async_dapo.rollout.tools import recorded_tools
from recipe.async_dapo.training.checkpoints import group_of, record_of

from ..support.rollout_world import Loop, N, finished, group, outcome_of, rollout
from ..support.till import lines

pytestmark = pytest.mark.slow
Told = asyncio.Queue[str]
ROOT = Path(__file__).resolve().parents[2]


class Server:
    """The process, and where its ledger is."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.ledger, self.url = folder / "ledger.jsonl", f"http://127.0.0.1:{self._port}/mcp"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.mcp_till", str(self._port), str(self.ledger)]
        self.process = subprocess.Popen(command, cwd=ROOT)

    async def reached(self) -> None:
        assert self.process is not None
        async with asyncio.timeout(60):
            while True:
                try:
                    (await asyncio.open_connection("127.0.0.1", self._port))[1].close()
                    return
                except OSError:
                    assert self.process.poll() is None
                    await asyncio.sleep(0.05)

    async def ask(self, name: str, **arguments: int) -> None:
        async with Client(self.url) as client:
            await client.call_tool(name, arguments)

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    it = Server(tmp_path)
    yield it
    it.end()


def paying(server: Server, folder: Path, told: Told, amount: int, may_end: asyncio.Event | None = None) -> Loop:
    """As verl's tool agent loop drives a tool of its configuration."""
    config = (ROOT / "examples" / "tools" / "mcp_tools.yaml").read_text()
    (folder / "tools.yaml").write_text(
        config.replace("http://127.0.0.1:8900/mcp", server.url).replace("multiply", "pay")
    )
    [tool] = recorded_tools(initialize_tools_from_config(str(folder / "tools.yaml")), timeout_s=60.0)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        instance_id, _ = await tool.create(create_kwargs={})
        try:
            response, _, _ = await tool.execute(instance_id, {"amount": amount}, agent_data=object())
            told.put_nowait(response.text)
        except Exception as error:
            told.put_nowait(str(error))
        finally:
            await tool.release(instance_id)
        if may_end is not None:
            await may_end.wait()
        return finished(trajectory)

    return loop


async def stopped(running: GroupRollout, held: PromptGroup, server: Server) -> GroupOutcome | None:
    """As soon as all calls are in the server."""
    task = asyncio.create_task(running.run(held))
    await server.ask("wait_for", calls=N)
    running.running.interrupt()
    return await task


def test_given_a_real_server_when_rounds_stop_under_its_calls_then_each_is_made_once(server, tmp_path, capsys) -> None:
    async def main() -> None:
        server.start()
        await server.reached()
        told: Told = asyncio.Queue()
        held, loop = group(), paying(server, tmp_path, told, 7)
        for _ in range(3):
            assert await stopped(rollout(loop), held, server) is None
        saved = group_of(record_of(held))
        await server.ask("answer")
        assert (await outcome_of(rollout(loop), held)).verdict is Verdict.VALID
        assert [told.get_nowait() for _ in range(told.qsize())] == ["7 paid"] * N
        calls = [line["call"] for line in lines(server.ledger)]
        assert len(calls) == len(set(calls)) == N

        assert (await outcome_of(rollout(paying(server, tmp_path, told, 7)), saved)).verdict is Verdict.VALID
        again = [line["call"] for line in lines(server.ledger)][N:]
        assert sorted(again) == sorted(calls), "after a kill it is made again, under the same id"

    asyncio.run(asyncio.wait_for(main(), 120))
