"""An agent as a program: a function, or a command line, checked before a run and started for each trajectory."""

import os
import shutil
from typing import Any

from ...config.values import ConfigError
from ...runtime.containment import first_line
from .agent_host import AgentHost, passed_on
from .agent_program import function_of


class Program:
    """The program of one entry in the file of agent loops.

    Args:
        file: the option that names this file, which errors begin with.
        agent: `module:function`, if it is one.
        command: else the command line.
        environment: further variables of a command.
    """

    def __init__(self, file: str, *, agent: str | None, command: list[str] | None, environment: dict[str, str]) -> None:
        self._file, self._agent, self._command, self._environment = file, agent, command, environment

    def check(self) -> None:
        """
        Raises:
            ConfigError: if it is not there.
        """
        if self._agent is not None:
            self._check_function(self._agent)
        if self._command is not None:
            self._check_command(self._command[0])

    async def run(self, address: str, key: str, sample: dict[str, Any]) -> Any:
        """Its result for one sample.

        Args:
            address: of the gateway that it asks.
            key: of its session there.

        Raises:
            TrajectoryFailed: if it cannot be started, or ends with an error.
        """
        start: dict[str, Any]
        if self._agent is not None:
            start = {"agent": self._agent, "base_url": address, "key": key, "sample": sample}
            return await AgentHost.of("functions").run(start)
        environment = passed_on(os.environ) | self._environment
        environment |= {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": key,
            "GATEWAY_URL": address,
        }
        start = {"command": self._command, "environment": environment, "sample": sample}
        return await AgentHost.of("commands").run(start)

    def _check_function(self, name: str) -> None:
        try:
            function = function_of(name)
        except BaseException as error:  # the user's module may raise anything, SystemExit included
            if isinstance(error, KeyboardInterrupt):
                raise
            remedy = "correct the name, or install its module on every node"
            what = f"cannot be loaded: {first_line(error)}; {remedy}"
            raise ConfigError(f"{self._file}, agent", name, what) from error
        if not callable(function):
            raise ConfigError(f"{self._file}, agent", name, "is no function; name one of base URL, key and sample")

    def _check_command(self, program: str) -> None:
        key = f"{self._file}, command"
        if shutil.which(program) is None:
            remedy = "give its whole path, since it runs in a fresh folder, on every node"
            raise ConfigError(key, program, f"is not found, or is no program; {remedy}")
        if os.path.dirname(program) and not os.path.isabs(program):
            raise ConfigError(key, program, "runs in a fresh folder: give its whole path")
