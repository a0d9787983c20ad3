"""What a checkpoint keeps over runs with shares and runs without."""

from collections.abc import Sequence
from typing import Any

import pytest

from recipe.async_dapo.config.values import BALANCED, ConfigError
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.extensions.shares.prompts import SharedSource
from recipe.async_dapo.training.source import Loader

from ....support.simulated_options import options


class Data:
    """Rows of two sources."""

    def __init__(self, *sources: str) -> None:
        self.sources, self.seed = sources, 0

    def pick(self, rows: Any) -> list[PromptGroup]:
        return [PromptGroup(uid=str(row), prompt={}, drawn_at_step=1, trajectories=[]) for row in rows]


class HoldsBack(Loader):
    held = 5


def source(loader: type[Loader] = Loader, **changes: Any) -> SharedSource:
    return SharedSource(options(**changes), loader(lambda count: []))


def with_shares(shares: Any, batch: int = 4, data: Sequence[str] = ("sums", "code", "sums", "sums")) -> SharedSource:
    made = source(sources=shares, target_valid_groups=batch)
    made.mix(OverSampling(target_valid_groups=batch, batch_size=None))
    made.begin_with(Data(*data))
    return made


def test_what_another_source_holds_back_is_counted() -> None:
    assert source(HoldsBack).held == 5


def test_a_run_without_shares_keeps_the_places_of_one_with_shares() -> None:
    before, without, after = with_shares(BALANCED), source(), with_shares(BALANCED)
    begun = before.draw(1, 1, "sums")
    without.restore(before.state())
    after.restore(without.state())
    assert len({group.uid for group in begun + after.draw(2, 1, "sums")}) == 3


def test_a_named_source_that_would_have_no_group_of_a_batch_is_refused() -> None:
    assert with_shares({"sums": 3.0, "code": 1.0}).mix
    with pytest.raises(ConfigError, match=r"async_dapo.sources=.*'code' has no group of a batch of 4"):
        with_shares({"sums": 30.0, "code": 1.0})


def test_sources_that_are_numbers_are_named_by_numbers() -> None:
    assert with_shares({1: 1.0, "2": 3.0}, data=("1", "2", "2")).draw(1, 1, "1")


def test_the_log_says_which_prompts_have_no_share(caplog) -> None:
    with caplog.at_level("INFO"):
        with_shares({"sums": 1.0}, data=("sums", "code", "prose", "prose"))
    assert "prompts of sources that have no share are not drawn: {'code': 1, 'prose': 2}" in caplog.text
