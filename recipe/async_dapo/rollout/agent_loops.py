"""verl's agent loops, one per trajectory, made without reading their configuration again each time."""

import functools
import platform
from collections.abc import Callable
from typing import Any

import hydra
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, _agent_loop_registry

from ..config import ConfigError


class AgentLoopFactory:
    """Makes a fresh agent loop for each trajectory, as verl's worker does.

    Args:
        parts: what verl gives to every agent loop.
    """

    def __init__(self, **parts: Any) -> None:
        self._parts = parts
        self._constructors: dict[str, Callable[..., AgentLoopBase]] = {}

    def make(self, name: str) -> AgentLoopBase:
        """A fresh agent loop.

        Raises:
            ConfigError: for a name that nobody has registered, or an agent loop that cannot be made here.
        """
        if name not in self._constructors:
            self._constructors[name] = self._constructor(name)
        try:
            return self._constructors[name](**self._parts)
        except Exception as error:  # the same for every prompt: to count them as failed would use up the data
            raise _cannot_be_made(name, error) from error

    def _constructor(self, name: str) -> Callable[..., AgentLoopBase]:
        if name not in _agent_loop_registry:
            raise ConfigError(
                "actor_rollout_ref.rollout.agent.default_agent_loop, or the data set's column agent_name",
                name,
                f"no such agent loop; choose one of {sorted(_agent_loop_registry)}, or register it",
            )
        config = OmegaConf.create(_agent_loop_registry[name])
        arguments = {key: value for key, value in config.items() if key != "_target_"}
        # A nested configuration may hold an object that must not be shared, a key like _args_ is Hydra's to read.
        if any(OmegaConf.is_config(value) or str(key).startswith("_") for key, value in arguments.items()):
            return lambda **parts: hydra.utils.instantiate(config, **parts)
        try:
            return functools.partial(hydra.utils.get_object(config["_target_"]), **arguments)
        except Exception as error:
            raise _cannot_be_made(name, error) from error


async def run_loop(agent_loop: AgentLoopBase, sampling_params: dict[str, Any], **sample: Any) -> list[AgentLoopOutput]:
    output = await agent_loop.run(sampling_params, **sample)
    return output if isinstance(output, list) else [output]


def is_replayable(agent_loop: AgentLoopBase) -> bool:
    """Whether it can be brought to where it was interrupted, by its record."""
    return getattr(agent_loop, "replayable", True)


def has_state(agent_loop: AgentLoopBase) -> bool:
    """Whether it says that it has more to keep than its record."""
    return getattr(agent_loop, "keeps_state", False) or not is_replayable(agent_loop)


def _cannot_be_made(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        "actor_rollout_ref.rollout.agent",
        name,
        f"this agent loop cannot be made on node {platform.node()}: {error!r}; its module, tools and files must be on "
        "every node, and its options right",
    )
