"""Checks of options alone, put around those of the core."""

from functools import partial

from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...config.values import check_each, check_rules
from ...startup.facts import Run
from ...startup.preflight import Check, Seen, behind, in_turn
from .choices import check_values
from .installed import check_by_verl
from .rows import ROWS


def all_checks(core: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """
    Args:
        core: its checks, by their names.
    """

    def together() -> None:
        run = Run.of(config, options)
        check_each([partial(check_values, run), partial(check_rules, ROWS, run, run.config)])

    checks = core | {"options together": in_turn(together, core["options together"])}
    return behind(checks, {"vLLM's arguments": {"verl's own checks": partial(check_by_verl, config)}})
