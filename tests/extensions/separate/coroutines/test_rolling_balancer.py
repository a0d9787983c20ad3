"""The load balancer of engines that get weights one by one, as a plain class: updates under load, stops, joins, faults
at any moment.
"""

import asyncio
from random import Random

import pytest

from recipe.async_dapo.config.values import RolloutStrategy

from ....support.simulation import at_each
from ..support.rolling_world import RollingWorld

SEPARATE = [one for one in RolloutStrategy if one is not RolloutStrategy.DISCARD]
STRATEGIES = pytest.mark.parametrize("strategy", SEPARATE)
MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(15, 30)]
MOMENTS_S = [
    k / 8 for k in range(28)
]  # from before an update of 2 s until after it, calls of a quarter second included


@pytest.mark.slow
@STRATEGIES
@at_each(MOMENTS_S)
async def test_given_a_stop_at_any_moment_of_an_update_when_engines_are_opened_again_then_each_serves(
    monkeypatch, strategy, moment_s: float
) -> None:
    for opened_after_s in (0.0, 0.3, 1.1, 5.0):
        it = RollingWorld(monkeypatch, strategy, "ab", latency_s=lambda method: 0.6 if method == "go_on" else 0.25)
        await it.begin()
        clients = [asyncio.create_task(it.answers(range(k, k + 60, 20), length_tok=4)) for k in range(6)]
        await asyncio.sleep(1)
        await it.publish(1)
        await asyncio.sleep(moment_s)
        await it.balancer.stop()
        await asyncio.sleep(opened_after_s)
        if opened_after_s > 2:  # a call that was under way at the stop may arrive late, and is taken back
            assert not any(server.generates for server in it.servers.values())
        await it.balancer.open()
        async with asyncio.timeout(200):
            await asyncio.gather(*clients)
        await it.is_well(newest=1)


async def test_given_an_engine_that_is_removed_while_others_are_asked_then_it_has_no_capacity(monkeypatch) -> None:
    it = RollingWorld(monkeypatch, RolloutStrategy.PARTIAL, "ab")
    await it.begin()
    it.handles["b"].latency_s = 2.0
    turning = asyncio.create_task(it.balancer.turn_over())
    await asyncio.sleep(1)
    it.balancer._lives.lose("a", "leaves")
    stats, _ = await turning
    assert stats.loads.keys() == {"b"} and stats.servers == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(15), *MORE_SEEDS])
async def test_given_any_order_of_events_then_all_answers_are_whole_and_engines_have_the_newest_weights(
    monkeypatch, seed
) -> None:
    random = Random(seed)
    strategy = SEPARATE[seed % 3]
    latency_s = random.choice([0.01, 0.25, lambda method: random.choice([0.01, 0.3, random.uniform(0, 2)])])
    it = RollingWorld(
        monkeypatch,
        strategy,
        "abcdef"[: random.randint(2, 6)],
        max_lag=random.choice([None, 0, 1, 3]),
        transfer_s=random.choice([0.1, 3.0, 30.0]),
        latency_s=latency_s,
    )
    await it.begin()
    looking = asyncio.create_task(it.look())
    answers = [it.answers(range(k, k + 200, 20), length_tok=random.choice([2, 9, 30])) for k in range(12)]
    clients = [asyncio.create_task(each) for each in answers]
    newest, ended = 0, set[str]()
    for number in range(25):
        event = random.choice(["publish", "publish", "stop", "turn over", "join", "end", "end", "bury", "cut", "look"])
        registered = (await it.balancer.get_status())["registered_handles"]
        well = [name for name in registered if name not in ended]
        engine = random.choice(well)
        match event:
            case "publish":
                newest += 1
                await it.publish(newest)
            case "stop":
                await it.balancer.stop()
                await asyncio.sleep(pause_s := random.choice([0.0, 1.0, 20.0]))
                assert pause_s < 20 or not any(it.servers[name].generates for name in well), "it goes on after a stop"
                await it.balancer.open()
            case "turn over":
                await it.balancer.turn_over()
            case "join":
                await it.join(f"joined-{number}", token_s=random.choice([1.0, 3.0]))
            case "end" if len(well) > 1:
                ended.add(engine)
                await it.end(engine, random.choice(["die", "silent", "fails", "hangs"]))
            case "bury" if len(registered) > len(well):
                await it.end(random.choice([name for name in registered if name in ended]), "die")
            case "cut":
                it.handles[engine].cut_off(0.5)
            case "look":
                await it.balancer.look_after_servers()
        await asyncio.sleep(random.choice([0.0, 0.5, 5.0]))
    async with asyncio.timeout(20_000):
        await asyncio.gather(*clients)
        await it.publish(newest + 1)
        await it.is_well(newest + 1)
    assert not ended & set((await it.balancer.get_status())["registered_handles"])
    looking.cancel()
