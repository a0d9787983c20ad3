"""An agent as a program: a function, or a command line, checked before a run and started for each trajectory."""

import os
import shutil
from typing import Any

from ...config.values import ConfigError
from ...runtime.containment import contained, first_line
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

    def check(self) -> list[str]:
        """
        Returns:
            Warnings.

        Raises:
            ConfigError: if it is not there.
        """
        if self._agent is not None:
            self._check_function(self._agent)
            return []
        assert self._command is not None
        key, program = f"{self._file}, command", self._command[0]
        if shutil.which(program) is None:
            remedy = "give its whole path, since it runs in a fresh folder, on every node"
            raise ConfigError(key, program, f"is not found, or is no program; {remedy}")
        if os.path.dirname(program) and not os.path.isabs(program):
            raise ConfigError(key, program, "runs in a fresh folder: give its whole path")
        words = [word for word in self._command[1:] if os.path.isfile(word) and not os.path.isabs(word)]
        return [f"its command runs in a fresh folder, without {word}: give that file's whole path" for word in words]

    async def run(self, address: str, key: str, sample: dict[str, Any]) -> Any:
        """Its result for one sample.

        Args:
            address: of the gateway that it asks.
            key: of its session there.

        Raises:
            TrajectoryFailed: if it cannot be started, or ends with an error.
        """
        if self._agent is not None:
            function = {"agent": self._agent, "base_url": address, "key": key, "sample": sample}
            return await AgentHost.of("functions").run(function)
        environment = passed_on(os.environ) | self._environment
        environment |= {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": key,
            "GATEWAY_URL": address,
        }
        command = {"command": self._command, "environment": environment, "sample": sample}
        return await AgentHost.of("commands").run(command)

    def _check_function(self, name: str) -> None:
        key = f"{self._file}, agent"
        try:
            with contained():
                function = function_of(name)
        except Exception as error:  # the user's module may raise anything
            what = f"cannot be loaded: {first_line(error)}; correct the name, or install its module on every node"
            raise ConfigError(key, name, what) from error
        if not callable(function):
            raise ConfigError(key, name, "is no function; name one of base URL, key and sample")
