"""Every check of a run, in order: those of the core, and behind or between them those that try what options name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...config.values import ConfigError
from ...startup.checkpoint_to_resume import check_resume
from ...startup.preflight import WARNING, Check, Seen, behind, in_turn
from .checkpoint import CHECKS
from .data import Prompts, check_data
from .environment import check_environment
from .folders import check_folders
from .loops_and_tools import check_loops_and_tools
from .model import check_model
from .reward import check_reward
from .weights import check_weights


def all_checks(core: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """
    Args:
        core: its checks, by their names.
        seen: the check of the data puts its rows there.
    """

    def data() -> str:
        rows: dict[str, dict[str, Any]] = {}
        prompts = Prompts(config, seen.model())
        try:
            told = check_data(config, options, prompts, rows)
        except ConfigError:
            seen.rows = list(rows.values()) or None  # of files that are right: what comes next is tried on these
            raise
        seen.rows = list(rows.values())
        return WARNING + told if told else f"sources {', '.join(sorted(rows))}"

    def reward() -> str:
        function, odd = check_reward(config, options, seen.rows, seen.model)
        return WARNING + odd if odd else function

    own = (lambda: check_model(config, seen.model()), _warned(lambda: check_weights(config, seen.model())))
    checks = core | {"checkpoint": partial(check_resume, config, *CHECKS), "model": in_turn(*own)}
    further: dict[str, dict[str, Check]] = {
        "vLLM's arguments": {
            "environment": _warned(partial(check_environment, config)),
            "output folders": partial(check_folders, config),
        },
        "checkpoint": {"agent loop and tools": partial(check_loops_and_tools, config), "data": data},
        "model": {"reward function": reward},
    }
    return behind(checks, further)


def _warned(check: Callable[[], str]) -> Check:
    """A check that tells what is missing."""

    def warned() -> str:
        lacks = check()
        return WARNING + lacks if lacks else ""

    return warned
