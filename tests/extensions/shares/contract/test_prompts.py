"""Prompts by source from verl's own data set and collation: no prompt is left out or comes twice in a pass."""

from collections import Counter
from pathlib import Path

import pytest

from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.shares.mix import SourceMix
from recipe.async_dapo.extensions.shares.prompts import SharedSource
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ....support.composed_runs import compose_run, rows, valid_overrides, write_files, write_parquet

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl's data set
COUNTS = {"sums": 12, "code": 4}


class Loaded(AsyncDAPOTrainer):
    """The data of a run, and the replay buffer that draws from them."""

    def __init__(self, *overrides: str) -> None:
        config = compose_run(list(overrides))
        self.trainer_mode, self.parameter_sync_step, self.global_steps = "async_dapo", 1, 1
        self.config, self.options = config, AsyncDAPOConfig.from_hydra(config)
        self.replay_buffer = self._build_replay_buffer()
        self._init_tokenizer()
        self._init_dataloader()

    @property
    def source(self) -> SharedSource:
        assert isinstance(self.replay_buffer.source, SharedSource)
        return self.replay_buffer.source


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    files = write_files(tmp_path_factory.mktemp("run"))
    mixed = rows(COUNTS["sums"]) + rows(COUNTS["sums"] + COUNTS["code"], source="code")[COUNTS["sums"] :]
    write_parquet(Path(files, "train.parquet"), mixed)
    return valid_overrides(files)


def drawn(loaded: Loaded, counts: dict[str, int]) -> list[int]:
    groups = [group for name, count in counts.items() for group in loaded.source.draw(count, 1, name)]
    assert len({group.uid for group in groups}) == len(groups)
    assert Counter(group.source for group in groups) == counts
    return [group.prompt["extra_info"]["index"] for group in groups]


@pytest.mark.slow
def test_each_pass_over_a_source_has_all_its_prompts_once_in_another_order(files) -> None:
    loaded = Loaded(*files, "async_dapo.sources={sums: 1, code: 3}")
    first, second = (drawn(loaded, COUNTS) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(16)) and first != second


@pytest.mark.slow
def test_rows_come_as_they_are_in_the_data_where_nothing_is_shuffled(files) -> None:
    loaded = Loaded(*files, "async_dapo.sources=balanced", "data.shuffle=False")
    assert drawn(loaded, {"sums": 3, "code": 5}) == [0, 1, 2, 12, 13, 14, 15, 12]


@pytest.mark.slow
def test_a_run_goes_on_with_the_next_prompt_of_each_source(files) -> None:
    overrides = (*files, "async_dapo.sources=balanced", "data.seed=3")
    run, other = Loaded(*overrides), Loaded(*overrides)
    begun = drawn(run, {"sums": 5, "code": 3})
    other.source.restore(run.source.state())
    assert begun + drawn(run, {"sums": 7, "code": 1}) == begun + drawn(other, {"sums": 7, "code": 1})


@pytest.mark.slow
def test_balanced_has_the_shares_of_the_data(files) -> None:
    mix = Loaded(*files, "async_dapo.sources=balanced").replay_buffer.mix
    assert isinstance(mix, SourceMix) and mix.targets == {"sums": 6, "code": 2}


@pytest.mark.slow
def test_a_source_that_the_data_do_not_have_ends_the_run_as_they_are_loaded(files) -> None:
    with pytest.raises(ConfigError, match=r"^async_dapo.sources=.*the data have no source 'cod'; theirs are 'code'"):
        Loaded(*files, "async_dapo.sources={sums: 1, cod: 1}")
