"""How long an engine may take to go to sleep."""

import asyncio
from typing import Any

import pytest
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from recipe.async_dapo.engines.replica import FIRST_SLEEP_TIMES, AsyncDAPOReplica

from ..support.simulation import simulate

LIMIT_S = 120.0


def test_the_first_sleep_of_an_engine_may_take_longer_than_the_next_ones(monkeypatch) -> None:
    async def sleep(self: Any) -> None:
        await asyncio.sleep(3 * LIMIT_S)

    monkeypatch.setattr(vLLMReplica, "sleep", sleep)
    replica: Any = AsyncDAPOReplica.__new__(AsyncDAPOReplica)
    replica.replica_rank, replica.processes, replica._engine_timeout_s, replica._has_slept = 0, [], LIMIT_S, False
    assert FIRST_SLEEP_TIMES == 5, "as the comment of async_dapo.engine_timeout_s says"
    simulate(replica.sleep())
    with pytest.raises(TimeoutError, match=r"has not gone to sleep within async_dapo\.engine_timeout_s=120"):
        simulate(replica.sleep())
