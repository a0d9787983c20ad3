"""Start-up checks: everything that can be known to be wrong before a cluster starts ends in a clear error."""

import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ..config.options import AsyncDAPOConfig
from ..config.values import ConfigError, ConfigErrors, check_each
from ..runtime.containment import contained
from ..runtime.interruption import interruptible
from ..runtime.verl_version import check_versions
from .agent_loop_check import WARNING, first_line
from .keys import UnreadKey, unread_keys, without
from .users_code import name_files_plainly, shipped_modules
from .verl_options import check_types

logger = logging.getLogger(__name__)

NOT_TRIED = "not tried: "  # a note that begins so claims nothing
OPTIONS = "async_dapo options"  # the check without which those after it do not run

Check = Callable[[], str | None]  # returns a note


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a check ended: with a note, or with an error."""

    name: str
    note: str = ""
    error: ConfigError | None = None


def check_all(config: DictConfig) -> None:
    """Check options, folders, checkpoint, code, data and reward function; nothing that starts Ray.

    Raises:
        ConfigError: the first that is found, naming key, value and remedy.
    """
    for finding in findings(config):
        if finding.error is not None:
            raise finding.error
        if finding.note.startswith(WARNING):
            logger.warning("%s: %s", finding.name, finding.note.removeprefix(WARNING))


def findings(config: DictConfig) -> Iterator[Finding]:
    """Run every check, cheap ones first, each whatever became of those before. Keys that nobody reads are left out of
    what the others look at. Without options, and values of the right types, no other can run.
    """
    yield from _run("versions", check_versions)
    unread: list[UnreadKey] = []
    parsed: list[AsyncDAPOConfig] = []

    def find_unread() -> None:
        unread.extend(unread_keys(config))
        if unread:
            raise ConfigErrors([one.error(config) for one in unread])

    def parse() -> str:
        check_each([partial(check_types, config), partial(AsyncDAPOConfig.from_hydra, config)])
        name_files_plainly(config)
        parsed.append(AsyncDAPOConfig.from_hydra(config))
        return f"{parsed[0].rollout_strategy}, {parsed[0].stop_rule}"

    yield from _run("keys", find_unread)
    config = without(config, unread) if unread else config
    yield from _run(OPTIONS, parse)
    for options in parsed:
        with shipped_modules(config):
            for name, check in checks_of(config, options).items():
                yield from _run(name, check)


def _run(name: str, check: Check) -> Iterator[Finding]:
    """One finding if all is well, else one for each mistake."""
    try:
        with interruptible(signal.SIGINT), contained():  # the user's code may raise anything
            note = check() or ""
        yield Finding(name=name, note=note)
    except ConfigErrors as found:
        yield from (Finding(name=name, error=error) for error in found.errors)
    except ConfigError as error:
        yield Finding(name=name, error=error)
    except OmegaConfBaseException as error:
        what = str(error).split("\n")[0]
        problem = ConfigError(error.full_key or "config", "<unreadable>", f"{what}; correct the override")
        yield Finding(name=name, error=problem)
    except Exception as error:  # what no check foresees of data, models and users' code has a line like the rest
        problem = ConfigError(name, "<not checked>", f"{first_line(error)}; correct what is read there")
        problem.__cause__ = error
        yield Finding(name=name, error=problem)


def checks_of(config: DictConfig, options: AsyncDAPOConfig) -> dict[str, Check]:
    """The checks of a run by their names, in order. They are imported here, once the versions have been looked at."""
    from .agent_loop_check import check_agent_loop
    from .data_check import check_data
    from .environment_check import check_environment
    from .model_check import check_host_memory, check_model
    from .output_check import check_output_folders, check_resume
    from .reward_check import check_reward
    from .rules import check_options
    from .verl_options import check_by_verl, check_engine_arguments, check_verl_options

    rows: list[dict[str, Any]] = []  # one of each data source, to try the reward function on

    def data() -> str:
        found, left_out = check_data(config, options)
        rows.extend(found)
        return WARNING + left_out if left_out else f"sources {', '.join(sorted(row['data_source'] for row in rows))}"

    def warned(check: Callable[[DictConfig], str]) -> str:
        lacks = check(config)
        return WARNING + lacks if lacks else ""

    def reward() -> str:
        function, odd = check_reward(config, options, rows)
        return WARNING + odd if odd else function

    return {
        "verl's options": partial(check_verl_options, config),
        "options together": partial(check_options, config, options),
        "vLLM's arguments": partial(check_engine_arguments, config),
        "verl's own checks": partial(check_by_verl, config),
        "environment": partial(warned, check_environment),
        "output folders": partial(check_output_folders, config),
        "checkpoint": partial(check_resume, config),
        "agent loop and tools": partial(check_agent_loop, config),
        "data": data,
        "model": partial(warned, check_model),
        "host memory": partial(check_host_memory, config),
        "reward function": reward,
    }
