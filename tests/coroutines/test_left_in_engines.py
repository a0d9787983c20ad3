"""Whatever happens to requests, in any order: none is left in a server, and no lease is out."""

from random import Random

import pytest

from ..support.left_in_engines import SEEDS, World, live


@pytest.mark.parametrize("seed", SEEDS)
async def test_given_any_order_of_events_then_no_request_is_left_in_a_server_and_no_lease_is_out(
    monkeypatch, seed
) -> None:
    random = Random(seed)
    await live(World(monkeypatch, random), random)
