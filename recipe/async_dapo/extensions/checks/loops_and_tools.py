"""Names of agent loops and tools of the user's, which verl looks up in its workers when engines are up."""

from typing import Any

from omegaconf import DictConfig

from ...config.values import ConfigError, check_choice
from ...startup.agent_loops import (
    PLAIN_LOOP,
    TOOLS,
    import_external,
    import_loop,
    load_tools,
    named_loops,
    options_of,
    used_loops,
)

TOOL_LOOP = "tool_agent"


def check_names(config: DictConfig) -> None:
    """Look up the agent loops that are used.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    used = used_loops(config)
    if set(used) != {PLAIN_LOOP}:  # verl's agent loops take seconds to import
        import_external(config)
    for name, key in used.items():
        check_name(config, key, name)


def check_tools(config: DictConfig) -> list[str]:
    """Load the tools as an agent loop worker does.

    Returns:
        Their names.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    tools = config.actor_rollout_ref.rollout.multi_turn
    if TOOL_LOOP in used_loops(config):
        from verl.experimental.agent_loop.tool_parser import ToolParser

        check_choice(TOOLS + "format", tools.format, sorted(ToolParser._registry))
    return [tool.name for tool in load_tools(tools)]


def check_name(config: DictConfig, key: str, name: str) -> None:
    """Look an agent loop up.

    Raises:
        ConfigError: naming the option, the name and those that are known.
    """
    if name != PLAIN_LOOP:
        from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

        known = {*_agent_loop_registry, *named_loops(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)}
        check_choice(key, name, sorted(known))


def tool_schemas(config: DictConfig) -> list[dict[str, Any]]:
    """As agent loops offer them in prompts; none where they cannot be loaded, which `check_tools` tells."""
    try:
        tools = load_tools(config.actor_rollout_ref.rollout.multi_turn)
    except ConfigError:
        return []
    return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]


def may_score_itself(config: DictConfig, name: str) -> bool:
    """Whether an agent loop is the user's, which may score its trajectories: verl asks no reward function then. A class
    that knows better by its entry says so by `scores_itself(options)`.
    """
    entry = named_loops(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).get(name)
    if entry is None:
        return False
    asked = getattr(import_loop(entry, name), "scores_itself", None)
    return asked is None or asked(options_of(entry))
