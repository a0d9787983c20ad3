"""Rounds to open, and tickets of their groups."""

from dataclasses import fields
from typing import Any

from recipe.async_dapo.core.mix import ALL, Quota
from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.core.round_groups import WaitingGroup
from recipe.async_dapo.core.stop_rules import StopRuleName


def with_one_part(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a `RoundSpec`, of these and those of the `Quota` of its one part."""
    quota = {one.name: options[one.name] for one in fields(Quota) if one.name in options}
    rest = {name: value for name, value in options.items() if name not in quota}
    return rest | {"parts": {ALL: Quota(**quota)}}


def spec(round_id: str = "step-1", **options: Any) -> RoundSpec:
    defaults: dict[str, Any] = {
        "stop_rule": StopRuleName.FIRST_COMPLETED,
        "target_valid_groups": 2,
        "carried_valid_groups": 0,
        "drains": False,
    }
    return RoundSpec(round_id=round_id, **with_one_part(defaults | options))


def tickets(*uids: str, unfinished: int = 1) -> list[WaitingGroup]:
    return [WaitingGroup(prompt_uid=uid, unfinished=unfinished, content=uid.encode()) for uid in uids]
