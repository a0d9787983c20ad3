"""An MCP server with one tool. usage: mcp_server.py [PORT]"""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("arithmetic")


@server.tool()
def multiply(first: int, second: int) -> str:
    """Multiply two whole numbers."""
    return str(first * second)


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8900)
