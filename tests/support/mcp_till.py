"""An MCP server that takes money: a call is in its ledger before it is answered.

python -m tests.support.mcp_till PORT LEDGER
"""

import asyncio
import sys

from mcp.server.mcpserver import Context, MCPServer

from .till_server import write_line

server = MCPServer("till", log_level="ERROR")
_changed = asyncio.Condition()
_arrived = 0
_is_open = False


@server.tool()
async def pay(amount: int, ctx: Context) -> str:
    """Take money, and wait until the till is opened."""
    global _arrived
    meta = ctx.request_context.meta or {}
    write_line(sys.argv[2], call=meta["call_id"], amount=amount)
    async with _changed:
        _arrived += 1
        _changed.notify_all()
        await _changed.wait_for(lambda: _is_open)
    return f"{amount} paid"


@server.tool()
async def wait_for(calls: int) -> str:
    """Until so many calls have arrived."""
    async with _changed:
        await _changed.wait_for(lambda: _arrived >= calls)
    return "they are here"


@server.tool()
async def answer() -> str:
    """Let calls return."""
    global _is_open
    async with _changed:
        _is_open = True
        _changed.notify_all()
    return "open"


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]), stateless_http=True)
