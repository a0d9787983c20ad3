"""Shares by name that batch or data have no room for are told before anything starts."""

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.shares.named_shares import check_batch, named_shares
from recipe.async_dapo.startup.preflight import findings

from ....support.composed_runs import row, write_lines, write_parquet

DATA = [row(number, source="sums" if number % 2 else "code") for number in range(16)]


@pytest.mark.parametrize(
    ("sources", "file", "said"),
    [
        ("{sums: 1, code: 3}", "train.parquet", None),
        ("{sums: 1, cod: 3}", "train.parquet", "the data have no source 'cod'; theirs are 'code', 'sums'"),
        ("{sums: 30, code: 1}", "train.parquet", "'code' has no group of a batch of 8; give it a larger number"),
        ("{sums: 1, cod: 3}", "train.jsonl", None),  # the run says so, as soon as its data are loaded
    ],
)
def test_a_name_that_the_data_lack_or_a_batch_has_no_group_of_is_refused(run, tmp_path, sources, file, said):
    (write_parquet if file.endswith("parquet") else write_lines)(tmp_path / file, DATA)
    found = list(findings(run(f"data.train_files={tmp_path / file}", f"async_dapo.sources={sources}")))
    assert "shares of sources" in [one.name for one in found]
    errors = [str(one.error) for one in found if one.error is not None]
    assert len(errors) == (said is not None)
    assert all(error.startswith("async_dapo.sources={") and str(said) in error for error in errors)


def test_a_source_that_a_file_of_options_names_as_a_number_and_as_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^async_dapo.sources=.*: the source '1' is named as a number and as text"):
        check_batch({1: 0.5, "sums": 1.0, "1": 2.0}, 8)
    assert named_shares({1: 1.0, "sums": 3.0}) == {"1": 0.25, "sums": 0.75}
