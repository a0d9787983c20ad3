"""How the workers of a run make calls, and keep agent loops."""

from collections.abc import Callable
from functools import partial
from typing import Any

from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...core.users_errors import shortened
from .call_runner import CallRunner
from .kept_loops import KeptLoops


def of_worker(
    config: DictConfig, options: AsyncDAPOConfig, *, worker: int, promise: Callable[[str], Any]
) -> tuple[CallRunner, KeptLoops]:
    """Those of one worker, see `Declared.loops`."""
    turns = config.actor_rollout_ref.rollout.multi_turn
    calls = CallRunner(
        timeout_s=options.calls.timeout_s,
        journal_limit_bytes=options.calls.journal_limit_mb * 2**20,
        promise=promise,
        short_s=options.calls.short_s,
        carries=options.keeps_tokens,
        cut=partial(shortened, most=turns.max_tool_response_length, side=turns.tool_response_truncate_side),
    )
    return calls, KeptLoops(worker=worker, most=options.calls.kept_loops if options.keeps_tokens else 0)
