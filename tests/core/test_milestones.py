"""How often a long count is worth a line."""

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.milestones import Milestones


@given(total=st.integers(1, 400), parts=st.integers(1, 9))
def test_each_part_is_told_once_and_the_last_one_at_the_end(total: int, parts: int) -> None:
    milestones = Milestones(parts)
    told = [done for done in range(total + 1) if milestones.reached(done, total)]
    assert len(told) == min(parts, total) and told[-1] == total


def test_of_nothing_nothing_is_told() -> None:
    assert not Milestones(4).reached(0, 0)
