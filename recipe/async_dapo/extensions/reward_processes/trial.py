"""The reward function of a run, called as reward workers do, before there are any."""

from concurrent.futures import Future
from typing import Any

from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...config.values import copied
from .pool import RewardProcess, RewardProcesses
from .wiring import function_of, replace_remote


class Trial:
    """One call at a time, in a process.

    Attributes:
        config: of the run, with the reward manager that it has then.
    """

    def __init__(self, config: DictConfig, options: AsyncDAPOConfig) -> None:
        self._function = function_of(config, timeout_s=options.reward.timeout_s)
        self._processes = RewardProcesses(self._function, limit=1)
        self.config = copied(config)
        replace_remote(self.config)

    def load(self) -> None:
        """
        Raises:
            NotLoaded: if the function cannot be imported.
        """
        RewardProcess(self._function).end()

    def submit(self, arguments: dict[str, Any]) -> Future[Any]:
        """The function's result, or what is wrong with it: `NotLoaded`, or what a call is to blame for."""
        return self._processes.submit(arguments)

    def close(self) -> None:
        self._processes.close()
