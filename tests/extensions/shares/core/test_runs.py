"""Whole runs of random options with sources, in virtual time."""

import pytest


@pytest.mark.slow
def test_whatever_the_options_each_account_closes_and_each_batch_has_its_shares() -> None:
    """`play` asserts it after each step; a round that cannot go on would raise."""
    pytest.importorskip("recipe.async_dapo.extensions.sources.accounts", reason="an extension, which may be absent")
    from benchmarks.sources.fuzz import play_all

    played = play_all(24, seed=1)
    assert played["refused"].sum() == 0 and set(played["sources"]) == {"null", "balanced", "named"}
