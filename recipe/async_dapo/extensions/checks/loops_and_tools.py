"""Agent loops and tools of the user's, which verl looks up in its workers when engines are up: the files that name
them, and their classes.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from ...config.extensions import AGENTS, declared, missing, not_in_copy, of_copy
from ...config.values import ConfigError, check_choice
from ...core.trajectory import AGENT_COLUMN
from ...runtime.containment import contained, first_line
from ...runtime.logs import told_if_slow
from ...startup.preflight import WARNING
from ...startup.verl_options import listed

_AGENT = "actor_rollout_ref.rollout.agent."
_LOOP_FILE = _AGENT + "agent_loop_config_path"
_TOOL_FORMAT = "actor_rollout_ref.rollout.multi_turn.format"
PLAIN_LOOP = "single_turn_agent"  # verl's; it needs no file and no tool
TOOL_LOOP = "tool_agent"


def check_loops_and_tools(config: DictConfig) -> str:
    """Look up the agent loops that are used, import them, and load the tools, as an agent loop worker does.

    Returns:
        Those that are used, or what is to be warned of, in words.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    used = _used_loops(config)
    if set(used) != {PLAIN_LOOP}:  # verl's agent loops take seconds to import
        _import_external(config)
    for name, key in used.items():
        check_name(config, key, name)
    warnings, tools = _check_classes(config, used), _check_tools(config, used)
    if warnings:
        return WARNING + "; ".join(warnings)
    return ", ".join(sorted(used)) + (f"; tools {', '.join(tools)}" if tools else "")


def check_name(config: DictConfig, key: str, name: str) -> None:
    """Look an agent loop up.

    Raises:
        ConfigError: naming the option, the name and those that are known.
    """
    if name != PLAIN_LOOP:
        from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

        check_choice(key, name, sorted({*_agent_loop_registry, *_named_loops(config)}))


def loop_class(config: DictConfig, name: str) -> Any:
    """The class of an agent loop that the file of agent loops names; None of verl's."""
    entry = _named_loops(config).get(name)
    return None if entry is None else import_loop(entry, name)


def may_score_itself(config: DictConfig, name: str) -> bool:
    """Whether an agent loop is the user's, which may score its trajectories: verl asks no reward function then. A class
    that knows better by its entry says so by `scores_itself(options)`.
    """
    entry = _named_loops(config).get(name)
    if entry is None:
        return False
    asked = getattr(import_loop(entry, name), "scores_itself", None)
    return asked is None or asked(_options_of(entry))


def tool_schemas(config: DictConfig) -> list[dict[str, Any]]:
    """As agent loops offer them in prompts; none where they cannot be loaded, which the check of tools tells."""
    try:
        tools = _load_tools(config)
    except ConfigError:
        return []
    return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]


def _used_loops(config: DictConfig) -> dict[str, str]:
    """Names of agent loops, each with the option that names it, or whose Parquet files do; other formats are not looked
    at, and what is wrong with a file the check of the data says.
    """
    used = {config.actor_rollout_ref.rollout.agent.default_agent_loop: _AGENT + "default_agent_loop"}
    for key in ("data.train_files", "data.val_files"):
        for name in listed(OmegaConf.select(config, key)):
            with suppress(OSError, pa.ArrowException, KeyError):
                table = pq.read_table(Path(str(name)).expanduser(), columns=[AGENT_COLUMN])
                loops = table.column(AGENT_COLUMN).unique().drop_null().to_pylist()
                used |= dict.fromkeys(loops, f"{key}, column {AGENT_COLUMN}")
    return used


def _import_external(config: DictConfig) -> None:
    """As verl's workers do before they look up loops and tool parsers: libraries may register some. One that cannot be
    imported is told by the check of the model.
    """
    from verl.utils.import_utils import import_external_libs

    named = OmegaConf.select(config, "actor_rollout_ref.model.external_lib")
    with suppress(Exception), contained():
        import_external_libs([name for name in listed(named) if name is not None])


def _named_loops(config: DictConfig) -> dict[str, Any]:
    """Name -> entry of the file of agent loops."""
    value = config.actor_rollout_ref.rollout.agent.agent_loop_config_path
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


def import_loop(entry: dict[str, Any], name: str) -> Any:
    key, target = f"{_LOOP_FILE}, `_target_` of {name}", entry["_target_"]
    if extension := missing(str(target)):
        raise ConfigError(key, target, not_in_copy(extension, "choose another class"))
    try:
        with contained(), told_if_slow(f"the import of {target}, agent loop {name}"):
            found = hydra.utils.get_object(target)
    except Exception as error:  # the user's module may raise anything
        remedy = "correct the path of the class, or install its module on every node"
        raise ConfigError(key, target, f"cannot be imported: {first_line(error)}; {remedy}") from error
    if not callable(getattr(found, "run", None)):
        raise ConfigError(key, target, "has no method `run`; name an AgentLoopBase")
    return found


def _check_classes(config: DictConfig, used: dict[str, str]) -> list[str]:
    """Import those of the user's. A class may have a `check_entry` of its own, given its entry's options and the
    configuration, which returns warnings.
    """
    named, warnings = _named_loops(config), list[str]()
    for name, key in used.items():
        entry = named.get(name)
        found = _of_a_library(name) if entry is None else import_loop(entry, name)
        if found is not None and AGENTS not in declared():
            blamed = key if entry is None else f"{_LOOP_FILE}, `_target_` of {name}"
            warnings.append(_check_without_agents(found, name, blamed))
        if entry is not None and (check_entry := getattr(found, "check_entry", None)):
            warnings += [f"{name}: {warning}" for warning in check_entry(_options_of(entry), config)]
    return warnings


def _of_a_library(name: str) -> Any:
    """The class that a module of `external_lib` has registered as an agent loop; None of verl's own."""
    if name == PLAIN_LOOP:
        return None
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    target = str(_agent_loop_registry.get(name, {}).get("_target_", "verl."))
    return None if target.startswith("verl.") else hydra.utils.get_object(target)


def _check_without_agents(found: Any, name: str, key: str) -> str:
    """
    Returns:
        A warning.

    Raises:
        ConfigError: naming `key`, if the loop keeps a state.
    """
    from ...rollout.agent_loops import STATE_IS_LOST, has_state

    if has_state(found):
        raise ConfigError(key, found.__qualname__, STATE_IS_LOST)
    return f"{name}: a call that it records is made again where the loop runs again, as extensions/agents is not there"


def _check_tools(config: DictConfig, used: Iterable[str]) -> list[str]:
    """Load the tools as an agent loop worker does.

    Returns:
        Their names.
    """
    if TOOL_LOOP in used:
        from verl.experimental.agent_loop.tool_parser import ToolParser

        check_choice(_TOOL_FORMAT, OmegaConf.select(config, _TOOL_FORMAT), sorted(ToolParser._registry))
    return [tool.name for tool in _load_tools(config)]


def _load_tools(config: DictConfig) -> list[Any]:
    """None in a copy that refuses them."""
    load = of_copy("load_tools")
    return load(config) if load is not None else []
