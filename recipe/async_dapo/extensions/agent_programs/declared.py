"""Agents that are programs: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(agent_program="programs.Program")
