"""When a long count, or one that stands still, is worth a line."""

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.round import Milestones, Standstill


@given(total=st.integers(1, 400), parts=st.integers(1, 9))
def test_each_part_is_told_once_and_the_last_one_at_the_end(total: int, parts: int) -> None:
    milestones = Milestones(parts)
    told = [done for done in range(total + 1) if milestones.reached(done, total)]
    assert len(told) == min(parts, total) and told[-1] == total


def test_of_nothing_nothing_is_told() -> None:
    assert not Milestones(4).reached(0, 0)


def told(moves: set[int], *, until_s: int) -> list[tuple[int, float]]:
    """(second, seconds without a move) of each line, if something moves at these seconds."""
    standstill, count = Standstill(first_s=20.0, now_s=0.0), 0
    lines: list[tuple[int, float]] = []
    for second in range(until_s):
        count += second in moves
        if second >= standstill.look_at_s and (quiet_s := standstill.observe(count, now_s=second)) is not None:
            lines.append((second, quiet_s))
    return lines


def test_of_what_stands_still_the_lines_come_at_growing_distances() -> None:
    assert told(set(), until_s=200) == [(25, 20.0), (45, 40.0), (85, 80.0), (165, 160.0)]


def test_of_what_moves_nothing_is_told_and_after_a_move_the_time_begins_anew() -> None:
    assert told(set(range(0, 200, 10)), until_s=200) == []
    assert told({30}, until_s=60) == [(25, 20.0), (50, 20.0)]
