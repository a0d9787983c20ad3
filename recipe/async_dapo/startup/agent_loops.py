"""Agent loops of the user's: the file that names them and their classes, which verl looks up in its workers when
engines are up.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from ..config.extensions import AGENTS, declared, missing, not_in_copy
from ..config.values import ConfigError
from ..runtime.containment import contained, first_line
from .preflight import WARNING
from .verl_options import listed

_ROLLOUT = "actor_rollout_ref.rollout."
_LOOP = _ROLLOUT + "agent.default_agent_loop"
_LOOP_FILE = _ROLLOUT + "agent.agent_loop_config_path"
TOOLS = _ROLLOUT + "multi_turn."
AGENT_COLUMN = "agent_name"  # of the data, where a prompt names its own loop
TOOL_FILES = ("tool_config_path", "function_tool_path")
PLAIN_LOOP = "single_turn_agent"  # verl's; it needs no file and no tool


def check_agent_loops(config: DictConfig) -> str:
    """Import the agent loops that are used, as an agent loop worker does. A class may have a `check_entry` of its own,
    given its entry's options and the configuration, which returns warnings.

    Returns:
        Those that are used, or what is to be warned of, in words.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    agent, used = config.actor_rollout_ref.rollout.agent, used_loops(config)
    named = named_loops(agent.agent_loop_config_path)
    has_agents, warnings = AGENTS in declared(), list[str]()
    if not has_agents:
        _check_tools_without_agents(config.actor_rollout_ref.rollout.multi_turn)
    if set(used) != {PLAIN_LOOP}:  # verl's agent loops take seconds to import
        import_external(config)
    for name, key in used.items():
        if (entry := named.get(name)) is not None:
            found = import_loop(entry, name)
            if not has_agents:
                warnings.append(_check_loop_without_agents(found, name, f"{_LOOP_FILE}, `_target_` of {name}"))
            if check_entry := getattr(found, "check_entry", None):
                warnings += [f"{name}: {warning}" for warning in check_entry(options_of(entry), config)]
        elif not has_agents and name != PLAIN_LOOP and (registered := _of_a_library(name)) is not None:
            warnings.append(_check_loop_without_agents(registered, name, key))
    return WARNING + "; ".join(warnings) if warnings else ", ".join(sorted(used))


def used_loops(config: DictConfig) -> dict[str, str]:
    """Names of agent loops, each with the option that names it, or whose files do."""
    return {config.actor_rollout_ref.rollout.agent.default_agent_loop: _LOOP} | _loops_of_data(config)


def _check_tools_without_agents(tools: DictConfig) -> None:
    """Where the stop interrupts a loop its tools would be called again."""
    for option in TOOL_FILES:
        if tools[option] is not None:
            raise ConfigError(TOOLS + option, tools[option], not_in_copy(AGENTS, "leave tools out"))


def _check_loop_without_agents(found: Any, name: str, key: str) -> str:
    """Returns a warning.

    Raises:
        ConfigError: naming `key`, if the loop keeps a state.
    """
    if getattr(found, "keeps_state", False) or not getattr(found, "replayable", True):
        remedy = f"its loops keep a state over the stop: {not_in_copy(AGENTS, 'choose another class')}"
        raise ConfigError(key, found.__qualname__, remedy)
    return f"{name}: a call that it records is made again where the loop runs again, as extensions/agents is not there"


def _of_a_library(name: str) -> Any:
    """The class that a module of `external_lib` has registered as an agent loop; None of verl's own."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    target = str(_agent_loop_registry.get(name, {}).get("_target_", "verl."))
    return None if target.startswith("verl.") else hydra.utils.get_object(target)


def import_external(config: DictConfig) -> None:
    """As verl's workers do before they look up loops and tool parsers: libraries may register some. One that cannot be
    imported is told by the check of the model.
    """
    from verl.utils.import_utils import import_external_libs

    named = OmegaConf.select(config, "actor_rollout_ref.model.external_lib")
    with suppress(Exception), contained():
        import_external_libs([name for name in listed(named) if name is not None])


def loop_class(config: DictConfig, name: str) -> Any:
    """The class of an agent loop that the file of agent loops names; None of verl's."""
    entry = named_loops(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).get(name)
    return None if entry is None else import_loop(entry, name)


def _loops_of_data(config: DictConfig) -> dict[str, str]:
    """Agent loops that Parquet files name, with the option of the file; other formats are not looked at, and what is
    wrong with a file the check of the data says.
    """
    found: dict[str, str] = {}
    for key in ("data.train_files", "data.val_files"):
        for name in listed(OmegaConf.select(config, key)):
            with suppress(OSError, pa.ArrowException, KeyError):
                table = pq.read_table(Path(str(name)).expanduser(), columns=[AGENT_COLUMN])
                loops = table.column(AGENT_COLUMN).unique().drop_null().to_pylist()
                found |= dict.fromkeys(loops, f"{key}, column {AGENT_COLUMN}")
    return found


def named_loops(value: str | None) -> dict[str, Any]:
    """Name -> entry of the file of agent loops."""
    if value is None:
        return {}
    try:
        entries: Any = OmegaConf.load(value)
        return {entry.name: entry for entry in entries if entry._target_}
    except Exception as error:  # of reading, of YAML, and of what is no list of classes
        remedy = f"must hold a list of entries with `name` and `_target_`, a class: {first_line(error)}"
        raise ConfigError(_LOOP_FILE, value, remedy) from error


def options_of(entry: Any) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(entry, resolve=True)
    return {key: value for key, value in values.items() if key not in ("name", "_target_")}


def import_loop(entry: dict[str, Any], name: str) -> Any:
    key, target = f"{_LOOP_FILE}, `_target_` of {name}", entry["_target_"]
    if extension := missing(str(target)):
        raise ConfigError(key, target, not_in_copy(extension, "choose another class"))
    try:
        with contained():
            found = hydra.utils.get_object(target)
    except Exception as error:  # the user's module may raise anything
        remedy = "correct the path of the class, or install its module on every node"
        raise ConfigError(key, target, f"cannot be imported: {first_line(error)}; {remedy}") from error
    if not callable(getattr(found, "run", None)):
        raise ConfigError(key, target, "has no method `run`; name an AgentLoopBase")
    return found


def load_tools(tools: DictConfig) -> list[Any]:
    """All tools, loaded by verl's own code. A file each, so that the one to blame is known."""
    if all(tools[option] is None for option in TOOL_FILES):
        return []
    from verl.tools.tool_registry import load_all_tools

    all_tools: list[Any] = []
    for option in TOOL_FILES:
        value = tools[option]
        if value is None:
            continue
        try:
            with contained():
                loaded = load_all_tools(**{"tool_config_path": None, "function_tool_path": None, option: value})
        except Exception as error:  # the user's module may raise anything
            raise ConfigError(
                TOOLS + option, value, f"its tools cannot be loaded: {first_line(error)}; correct the file"
            ) from error
        if not loaded:
            raise ConfigError(TOOLS + option, value, "holds no tool; decorate a function with @function_tool")
        if twice := sorted({tool.name for tool in loaded} & {tool.name for tool in all_tools}):
            remedy = f"names tools as {TOOLS}tool_config_path does: {', '.join(twice)}; rename one of each two"
            raise ConfigError(TOOLS + option, value, remedy)
        all_tools += loaded
    return all_tools
