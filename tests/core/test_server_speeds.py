"""Speeds of servers from sums over their steps, against step times that are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.leases import RISE, StepSums, speeds

FAST_AND_SLOW = {"fast": 1.0, "b": 0.5, "c": 0.5}


def sums(batches: list[int], *, weights_s: float, each_s: float, speed: float = 1.0) -> StepSums:
    """Of steps with these numbers of requests."""
    step_s = [(weights_s + each_s * batch) / speed for batch in batches]
    return StepSums(
        steps=len(batches),
        requests=sum(batches),
        requests2=sum(batch**2 for batch in batches),
        seconds=sum(step_s),
        request_s=sum(batch * seconds for batch, seconds in zip(batches, step_s, strict=True)),
    )


@given(
    speed=st.floats(0.1, 1.0),
    weights_s=st.floats(0.0, 0.05),
    each_s=st.floats(1e-5, 1e-3),
    batches=st.lists(st.integers(1, 256), min_size=3, max_size=20, unique=True),
    share=st.floats(0.1, 1.0),
)
def test_given_batches_that_vary_then_a_speed_is_exact_however_many_requests_a_server_has(
    speed, weights_s, each_s, batches, share
) -> None:
    batches = [1, *batches, max(batches) + 9]
    mine = [max(1, int(share * batch)) for batch in batches]
    seen = {
        "a": sums(batches, weights_s=weights_s, each_s=each_s),
        "b": sums(batches[1:], weights_s=weights_s, each_s=each_s),
        "slow": sums(mine, weights_s=weights_s, each_s=each_s, speed=speed),
    }
    found = speeds(seen, {"a": 1.0, "b": 1.0, "slow": 0.9})
    assert found["slow"] == pytest.approx(speed, rel=0.01)


@pytest.mark.parametrize(("weights_s", "each_s"), [(0.01, 0.0), (0.0, 0.001), (0.01, 0.0005)])
def test_given_batches_all_alike_then_a_speed_stays_between_what_is_possible(weights_s, each_s) -> None:
    others = {key: sums([16] * 10, weights_s=weights_s, each_s=each_s) for key in "ab"}
    before = {"a": 1.0, "b": 1.0, "slow": 1.0}
    for _ in range(20):
        mine = [max(1, int(16 * before["slow"]))] * 10
        before |= speeds(others | {"slow": sums(mine, weights_s=weights_s, each_s=each_s, speed=0.5)}, before)
        assert 0.5 / RISE <= before["slow"] <= 0.8


def test_given_batches_nearly_alike_and_a_short_step_by_chance_then_a_slow_server_does_not_seem_slower_still() -> None:
    """Full batches' steps also hold what was admitted to them: the few others say nothing about what a request adds."""
    by_chance = StepSums(
        steps=52,
        requests=50 * 16 + 2 * 12,
        requests2=50 * 16**2 + 2 * 12**2,
        seconds=50 * 0.0125 + 2 * 0.007,
        request_s=50 * 16 * 0.0125 + 2 * 12 * 0.007,
    )
    slow = sums([8] * 50, weights_s=0.0105, each_s=0.0001, speed=0.5)
    found = speeds({"a": by_chance, "b": by_chance, "slow": slow}, {"a": 1.0, "b": 1.0, "slow": 0.5})
    assert found["slow"] == pytest.approx(0.55, abs=0.06)


def test_given_one_fast_server_then_it_is_compared_with_the_slow_ones_and_they_with_it_alone() -> None:
    seen = {key: sums([4, 8, 16], weights_s=0.01, each_s=0.001, speed=speed) for key, speed in FAST_AND_SLOW.items()}
    assert speeds(seen, FAST_AND_SLOW) == pytest.approx({"fast": 2.0, "b": 0.5, "c": 0.5})


def test_given_many_servers_then_sums_grow_with_their_number_and_not_with_its_square(monkeypatch) -> None:
    seen = {str(number): sums([4, 8], weights_s=0.01, each_s=0.001) for number in range(100)}
    made, init = [], StepSums.__init__
    monkeypatch.setattr(StepSums, "__init__", lambda one, **values: made.append(one) or init(one, **values))
    assert len(speeds(seen, dict.fromkeys(seen, 1.0))) == 100
    assert len(made) <= 4 * 100


def test_given_nothing_that_ran_or_no_other_server_then_nothing_is_concluded() -> None:
    one = sums([4, 8], weights_s=0.01, each_s=0.001)
    assert speeds({"a": one, "idle": StepSums()}, {"a": 1.0, "idle": 1.0}) == {}
