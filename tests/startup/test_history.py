"""The file of prompts' histories is read where it is of this data set, and refused where it is not."""

from pathlib import Path

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.prompt_history import PassCount
from recipe.async_dapo.record.history import KEY, fingerprint, read_history, write_history
from recipe.async_dapo.startup.preflight import check_all

from ..support.composed_runs import refusal
from ..support.unreadable_history import UNREADABLE

COUNTS = {"a": PassCount(right=1.5, wrong=2.0, visits=3)}


def test_given_a_file_that_was_written_for_this_data_when_the_run_starts_then_it_is_read(run, tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    config = run(f"{KEY}={file}")
    check_all(config)
    assert read_history(str(file), config) == {}, "there is none before the first checkpoint"
    write_history(str(file), COUNTS, fingerprint(config))
    write_history(str(file), COUNTS, fingerprint(config))
    check_all(config)
    assert read_history(str(file), config) == COUNTS
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]


def test_given_the_same_data_elsewhere_then_it_is_the_same_data_set(run, files: Path, tmp_path: Path) -> None:
    (tmp_path / "moved.parquet").write_bytes((files / "train.parquet").read_bytes())
    assert fingerprint(run(f"data.train_files={tmp_path}/moved.parquet")) == fingerprint(run())
    assert fingerprint(run(f"data.train_files={files}/val.parquet")) != fingerprint(run())


def test_given_the_history_of_another_data_set_then_it_is_refused(run, files: Path, tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    write_history(str(file), COUNTS, fingerprint(run(f"data.train_files={files}/val.parquet")))
    assert f"{KEY}={file}: is the history of another data set" in refusal(run, f"{KEY}={file}")


@pytest.mark.parametrize("name", UNREADABLE)
def test_given_something_else_then_it_is_refused_with_the_remedy(run, tmp_path: Path, name: str) -> None:
    file = tmp_path / "history.json"
    cause = UNREADABLE[name](file)
    with pytest.raises(ConfigError, match=cause) as refused:
        read_history(str(file), run())
    assert refused.match(rf"{KEY}=.*is not what this recipe wrote .* delete it, or name a file that a run has written")


@pytest.mark.parametrize("name", ["", "missing/history.json"])
def test_given_a_place_that_cannot_be_written_then_it_is_refused(run, tmp_path: Path, name: str) -> None:
    assert "must be a file in a folder that exists" in refusal(run, f"{KEY}={tmp_path / name}")
