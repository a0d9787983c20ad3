"""Agent loops and tools: their names, files and modules, which verl looks up in its workers when engines are up."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from ..config.extensions import AGENTS, declared, missing, not_in_copy
from ..config.values import ConfigError, check_choice
from ..runtime.containment import contained
from .verl_options import listed

_ROLLOUT = "actor_rollout_ref.rollout."
_LOOP = _ROLLOUT + "agent.default_agent_loop"
_LOOP_FILE = _ROLLOUT + "agent.agent_loop_config_path"
_TOOLS = _ROLLOUT + "multi_turn."
AGENT_COLUMN = "agent_name"  # of the data, where a prompt names its own loop
_TOOL_FILES = ("tool_config_path", "function_tool_path")
PLAIN_LOOP = "single_turn_agent"  # verl's; it needs no file and no tool
TOOL_LOOP = "tool_agent"
WARNING = "warning: "  # a note that begins so is logged at every start


def check_agent_loop(config: DictConfig) -> str:
    """Look the agent loops up, import those that are used, and load their tools, as an agent loop worker does. A class
    may have a `check_entry` of its own, given its entry's options and the configuration, which returns warnings.

    Returns:
        What was found, in words.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    agent, tools = config.actor_rollout_ref.rollout.agent, config.actor_rollout_ref.rollout.multi_turn
    used = {agent.default_agent_loop: _LOOP} | loops_of_data(config)
    named = _named_loops(agent.agent_loop_config_path)
    if set(used) == {PLAIN_LOOP} and not (named or tools.tool_config_path or tools.function_tool_path):
        return PLAIN_LOOP  # verl's agent loops take seconds to import
    if AGENTS not in declared():
        _check_tools_without_agents(tools)
    _import_external(config)
    warnings: list[str] = []
    for name, key in used.items():
        check_name(config, key, name)
        if name in named:
            found = _import(named[name], name)
            if AGENTS not in declared():
                warnings.append(_check_loop_without_agents(found, name, f"{_LOOP_FILE}, `_target_` of {name}"))
            if check_entry := getattr(found, "check_entry", None):
                warnings += [f"{name}: {warning}" for warning in check_entry(_options_of(named[name]), config)]
        elif AGENTS not in declared() and (registered := _of_a_library(name)) is not None:
            warnings.append(_check_loop_without_agents(registered, name, key))
    if TOOL_LOOP in used:
        from verl.experimental.agent_loop.tool_parser import ToolParser

        check_choice(_TOOLS + "format", tools.format, sorted(ToolParser._registry))
    loaded = [tool.name for tool in _load_tools(tools)]
    if warnings:
        return WARNING + "; ".join(warnings)
    return ", ".join(sorted(used)) + (f"; tools {', '.join(loaded)}" if loaded else "")


def _check_tools_without_agents(tools: DictConfig) -> None:
    """Where the stop interrupts a loop its tools would be called again."""
    for option in _TOOL_FILES:
        if tools[option] is not None:
            raise ConfigError(_TOOLS + option, tools[option], not_in_copy(AGENTS, "leave tools out"))


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


def _import_external(config: DictConfig) -> None:
    """As verl's workers do before they look up loops and tool parsers: libraries may register some. One that cannot be
    imported is told by the check of the model.
    """
    from verl.utils.import_utils import import_external_libs

    named = OmegaConf.select(config, "actor_rollout_ref.model.external_lib")
    with suppress(Exception), contained():
        import_external_libs([name for name in listed(named) if name is not None])


def check_name(config: DictConfig, key: str, name: str) -> None:
    """Look an agent loop up.

    Raises:
        ConfigError: naming the option, the name and those that are known.
    """
    if name != PLAIN_LOOP:
        from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

        known = {*_agent_loop_registry, *_named_loops(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)}
        check_choice(key, name, sorted(known))


def loop_class(config: DictConfig, name: str) -> Any:
    """The class of an agent loop that the file of agent loops names; None of verl's."""
    entry = _named_loops(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).get(name)
    return None if entry is None else _import(entry, name)


def tool_schemas(config: DictConfig) -> list[dict[str, Any]]:
    """As agent loops offer them in prompts; none where they cannot be loaded, which `check_agent_loop` tells."""
    try:
        tools = _load_tools(config.actor_rollout_ref.rollout.multi_turn)
    except ConfigError:
        return []
    return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]


def loops_of_data(config: DictConfig) -> dict[str, str]:
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


def may_score_itself(config: DictConfig, name: str) -> bool:
    """Whether an agent loop is the user's, which may score its trajectories: verl asks no reward function then. A class
    that knows better by its entry says so by `scores_itself(options)`.
    """
    entry = _named_loops(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).get(name)
    if entry is None:
        return False
    asked = getattr(_import(entry, name), "scores_itself", None)
    return asked is None or asked(_options_of(entry))


def _named_loops(value: str | None) -> dict[str, Any]:
    """Name -> entry of the file of agent loops."""
    if value is None:
        return {}
    try:
        entries: Any = OmegaConf.load(value)
        return {entry.name: entry for entry in entries if entry._target_}
    except Exception as error:  # of reading, of YAML, and of what is no list of classes
        remedy = f"must hold a list of entries with `name` and `_target_`, a class: {first_line(error)}"
        raise ConfigError(_LOOP_FILE, value, remedy) from error


def _options_of(entry: Any) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(entry, resolve=True)
    return {key: value for key, value in values.items() if key not in ("name", "_target_")}


def _import(entry: dict[str, Any], name: str) -> Any:
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


def _load_tools(tools: DictConfig) -> list[Any]:
    """All tools, loaded by verl's own code. A file each, so that the one to blame is known."""
    from verl.tools.tool_registry import load_all_tools

    all_tools: list[Any] = []
    for option in _TOOL_FILES:
        value = tools[option]
        if value is None:
            continue
        try:
            with contained():
                loaded = load_all_tools(**{"tool_config_path": None, "function_tool_path": None, option: value})
        except Exception as error:  # the user's module may raise anything
            raise ConfigError(
                _TOOLS + option, value, f"its tools cannot be loaded: {first_line(error)}; correct the file"
            ) from error
        if not loaded:
            raise ConfigError(_TOOLS + option, value, "holds no tool; decorate a function with @function_tool")
        if twice := sorted({tool.name for tool in loaded} & {tool.name for tool in all_tools}):
            remedy = f"names tools as {_TOOLS}tool_config_path does: {', '.join(twice)}; rename one of each two"
            raise ConfigError(_TOOLS + option, value, remedy)
        all_tools += loaded
    return all_tools


def first_line(error: BaseException) -> str:
    """The first line of what went wrong at the bottom, and where in a file."""
    while error.__cause__ is not None:
        error = error.__cause__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{where}"
