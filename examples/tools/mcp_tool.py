"""A tool that an MCP server has, for verl's tool agent, as verl 0.9.1 brings none for MCP.

The server is a process of its own, somewhere: it outlives the run, and may be started again.
"""

from typing import Any

from mcp import Client
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from recipe.async_dapo.calls import call_id


class MCPTool(BaseTool):
    """Its configuration has the server's `url`."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        named: Any = {"call_id": call_id()}  # by which the server may know whether it has had this call
        async with Client(self.config["url"]) as client:
            result = await client.call_tool(self.name, parameters, meta=named)
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise RuntimeError(text)
        return ToolResponse(text=text), 0.0, {}
