"""Every check of a run, in order: those of the core, and behind or between them those whose mistakes only cost time."""

from collections.abc import Callable
from functools import partial

from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...config.values import check_each
from ...startup.agent_loop_check import WARNING
from ...startup.facts import Run
from ...startup.preflight import Check, Seen
from .choices import check_values
from .environment import check_environment
from .folders import check_folders
from .installed import check_argument_names, check_by_verl
from .reward import check_reward
from .weights import check_weights


def all_checks(core: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """
    Args:
        core: its checks, by their names.
        seen: filled once the core's check of the data has run.
    """

    def reward() -> str:
        function, odd = check_reward(config, options, seen.rows, seen.model)
        return WARNING + odd if odd else function

    further: dict[str, Check] = {
        "options together": _in_turn(lambda: check_values(Run.of(config, options)), core["options together"]),
        "vLLM's arguments": _in_turn(core["vLLM's arguments"], partial(check_argument_names, config)),
        "verl's own checks": partial(check_by_verl, config),
        "environment": _warned(partial(check_environment, config)),
        "output folders": _in_turn(core["output folders"], partial(check_folders, config)),
        "model": _in_turn(core["model"], _warned(lambda: check_weights(config, seen.model()))),
        "reward function": reward,
    }
    behind = {"vLLM's arguments": ("verl's own checks", "environment"), "model": ("reward function",)}
    names = [name for one in core for name in (one, *behind.get(one, ()))]
    return {name: further.get(name) or core[name] for name in names}


def _warned(check: Callable[[], str]) -> Check:
    """A check that tells what is missing."""

    def warned() -> str:
        lacks = check()
        return WARNING + lacks if lacks else ""

    return warned


def _in_turn(*checks: Check) -> Check:
    """One after the other, whatever the first finds."""

    def in_turn() -> str:
        notes: list[str | None] = []
        check_each([partial(lambda check: notes.append(check()), check) for check in checks])
        return "; ".join(filter(None, notes))

    return in_turn
