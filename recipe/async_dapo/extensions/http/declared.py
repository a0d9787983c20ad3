"""Agents that ask by HTTP: the place where their server plugs in."""

from ...config.extensions import Declared

DECLARED = Declared(stands_on="gateway", agent_server="server.AgentServer")
