"""Tools before a cluster starts: they are loaded, and calls that the user names are made once."""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ...calls import running_call_id
from ...config.extensions import declared
from ...config.options import AsyncDAPOConfig
from ...config.values import ConfigError, check_choice, check_each
from ...config.verl_keys import TOOL_FILES
from ...core.users_errors import shortened, shown_name, user_frames
from ...record.plain_values import AGENT_LOOP, to_plain
from ...runtime.containment import contained, first_line, value_of
from ...runtime.time_limit import LimitReached, within
from ...startup.preflight import NOT_TRIED, Check, Seen
from ..agents.call_runner import on_thread

OPTION = "async_dapo.calls.check"
LONGEST_S = 60.0  # of a call that is tried: a run may allow its own more
BLOCKED_S = 1.0  # beyond its limit, to see that a call holds up its event loop
SHOWN_CHARS = 240  # of an answer, or an error


def load_tools(config: DictConfig) -> list[Any]:
    """All tools, loaded by verl's own code. A file each, so that the one to blame is known.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    files = {key: value for key in TOOL_FILES if (value := OmegaConf.select(config, key)) is not None}
    all_tools: list[Any] = []
    for key, value in files.items():
        from verl.tools.tool_registry import load_all_tools

        none = {one.rpartition(".")[2]: None for one in TOOL_FILES}
        try:
            with contained():
                loaded = load_all_tools(**none | {key.rpartition(".")[2]: value})
        except Exception as error:  # the user's module may raise anything
            remedy = f"its tools cannot be loaded: {first_line(error)}; correct the file"
            raise ConfigError(key, value, remedy) from error
        if not loaded:
            raise ConfigError(key, value, "holds no tool; decorate a function with @function_tool")
        if twice := sorted({tool.name for tool in loaded} & {tool.name for tool in all_tools}):
            remedy = f"names tools as {next(iter(files))} does: {', '.join(twice)}; rename one of each two"
            raise ConfigError(key, value, remedy)
        all_tools += loaded
    return all_tools


def with_checks(checks: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """Those of the run, and one more where calls are named."""
    asked = options.calls.check
    if asked is None:
        return checks
    limit_s = min(LONGEST_S, options.calls.timeout_s)
    return checks | {"calls of tools": lambda: try_calls(config, asked, seen.rows or [], limit_s=limit_s)}


def try_calls(
    config: DictConfig, asked: Mapping[str, dict[str, Any]], rows: list[dict[str, Any]], *, limit_s: float
) -> str:
    """Make a call of each tool, as verl's tool agent makes it.

    Args:
        asked: the arguments by the names of the tools.
        rows: of the data; tools with instances are created as the first one says.

    Returns:
        The answers, in words.

    Raises:
        ConfigError: for each tool that is not there, raises, or does not answer in time; for a file that cannot be
            loaded, in a copy where no other check says so.
    """
    try:
        by_name = {tool.name: tool for tool in load_tools(config)}
    except ConfigError:
        if "checks" in declared():  # whose check of agent loops and tools says what is wrong with their files
            return f"{NOT_TRIED}the tools cannot be loaded"
        raise
    answers: list[str] = []

    def try_one(name: str, arguments: dict[str, Any]) -> None:
        check_choice(OPTION, name, sorted(by_name))
        began_s, creating = time.perf_counter(), _creating(rows, name)
        try:
            made = asyncio.run(_on_own_loop(_called(by_name[name], arguments, creating), limit_s))
            seconds, answer = time.perf_counter() - began_s, _text_of(made)
        except LimitReached as error:
            what = f"no answer within {limit_s:g} s; see that its service answers, and give its requests a limit"
            raise ConfigError(f"{OPTION}.{name}", arguments, what) from error
        except Exception as error:  # a tool may raise anything
            what, frames = shortened(str(error) or repr(error), SHOWN_CHARS), user_frames(error)
            where = f" at {shown_name(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
            then = "it would end a run" if isinstance(error, ConfigError) else "in a run the model would read this"
            remedy = f"{then}; correct the tool, its service, or these arguments"
            if not creating and hasattr(by_name[name], "create"):
                remedy += " (its instance has no create_kwargs: none of the rows that were looked at has any for it)"
            raise ConfigError(f"{OPTION}.{name}", arguments, f"failed: {what}{where}; {remedy}") from error
        answers.append(f"{name}: {shortened(answer, SHOWN_CHARS)!r} in {seconds:.2f} s")

    check_each([partial(try_one, name, arguments) for name, arguments in asked.items()])
    return ", ".join(answers)


async def _on_own_loop(call: Coroutine[Any, Any, Any], limit_s: float) -> Any:
    """What it returns, on a thread with an event loop of its own: a tool may block that, or have threads that never
    end, and nothing waits for either.
    """
    return await within(limit_s + BLOCKED_S, on_thread(lambda: asyncio.run(within(limit_s, call))))


def _creating(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """What the data give an instance of this tool."""
    given = [(row.get("tools_kwargs") or {}).get(name) for row in rows]
    return next((one.get("create_kwargs", {}) for one in given if one), {})


async def _called(tool: Any, arguments: dict[str, Any], creating: dict[str, Any]) -> Any:
    """The tool's response, reward and metrics."""
    from verl.tools.function_tool import FunctionTool, normalize_function_tool_return

    running_call_id.set(f"{OPTION}.{tool.name}")
    if isinstance(tool, FunctionTool):
        call = partial(tool.fn, **arguments)
        return normalize_function_tool_return(await (value_of(call) if tool.is_async else on_thread(call)))
    from verl.experimental.agent_loop.tool_agent_loop import AgentData

    instance_id, _ = await value_of(partial(tool.create, create_kwargs=creating))
    agent_data = AgentData([], [], [], None, None, {}, running_call_id.get(), {})
    try:
        return await value_of(partial(tool.execute, instance_id, arguments, agent_data=agent_data))
    finally:
        await value_of(partial(tool.release, instance_id))


def _text_of(answer: Any) -> str:
    """What the model would read, before it is cut.

    Raises:
        ConfigError: for what no record can hold.
        TypeError: for what verl cannot take of a tool with instances.
    """
    from verl.tools.schemas import ToolResponse

    from .tools import plain_answer

    if not (isinstance(answer, tuple | list) and len(answer) == 3 and isinstance(answer[0], ToolResponse)):
        raise TypeError(f"execute returns {answer!r:.80}, and not a ToolResponse, a reward and a dict of metrics")
    plain = plain_answer(*answer)
    to_plain({"value": plain}, source=AGENT_LOOP)
    return plain[0].get("text") or ""
