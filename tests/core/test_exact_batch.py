"""Invariant 3, as it is checked at every step."""

import pytest

from recipe.async_dapo.core.ledger import InexactBatch, check_batch

KEYS = [f"{uid}_{session}_0" for uid in ("a", "b") for session in range(2)]


def test_given_b_groups_of_n_when_checked_then_it_passes_whatever_the_outputs_of_a_trajectory() -> None:
    check_batch([*KEYS, "a_1_1"], ["a", "b"], groups=2, n=2)


@pytest.mark.parametrize(
    ("keys", "uids"),
    [(KEYS[1:], ["a", "b"]), ([*KEYS, "c_0_0"], ["a", "b"]), (KEYS[:2], ["a"]), ([*KEYS, "a_2_0"], ["a", "b"])],
)
def test_given_anything_else_when_checked_then_it_is_refused(keys: list[str], uids: list[str]) -> None:
    with pytest.raises(InexactBatch, match="batch is not 2 groups of 2"):
        check_batch(keys, uids, groups=2, n=2)
