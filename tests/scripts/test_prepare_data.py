"""What the prepared files hold, and which downloads are refused."""

import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ..support.fake_hub import published_rows
from ..support.prepare_runner import PART, READY, RUN_TIMEOUT_S, assert_ready, assert_refused


def test_given_repeated_rows_when_prepared_then_the_first_copy_of_each_prompt_stays_in_order_with_all_columns(prepare):
    """The bytes are the same every time, and those of the recorded checksum."""
    assert prepare().status == 0
    assert_ready(prepare)
    first = (prepare.data_home / "train.parquet").read_bytes()
    assert prepare(OVERWRITE="1").status == 0
    assert (prepare.data_home / "train.parquet").read_bytes() == first
    check = ["sha256sum", "--check", "train.parquet.sha256"]
    subprocess.run(check, cwd=prepare.data_home, check=True, timeout=RUN_TIMEOUT_S)


def test_given_several_pins_when_prepared_then_every_file_is_ready(prepare, hub):
    rows = published_rows(prompts=2, copies=4)
    with prepare.pins.open("a") as pins:
        pins.write("# a comment\n\n" + hub.publish("test.parquet", pa.Table.from_pylist(rows), prompts=2))
    assert prepare().status == 0
    assert prepare.files() == READY | {"test.parquet", "test.parquet.sha256"}


def test_given_one_prompt_with_two_ground_truths_when_prepared_then_the_first_is_kept_and_the_log_counts_it(
    prepare, hub
):
    rows = published_rows(prompts=3, copies=2)
    rows[4] = rows[4] | {"reward_model": {"ground_truth": "-1", "style": "rule"}}
    prepare.pins.write_text(hub.publish("train.parquet", pa.Table.from_pylist(rows), prompts=3))
    run = prepare()
    assert run.status == 0
    assert "1 prompts have several ground truths, the first is kept" in run.log
    truths = [
        row["ground_truth"] for row in pq.read_table(prepare.data_home / "train.parquet")["reward_model"].to_pylist()
    ]
    assert truths == ["0", "2", "4"]


def without_prompt(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "prompt"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (without_prompt, "expected the columns ['data_source', 'prompt', 'reward_model']"),
        (lambda row: row | {"prompt": "What is 1 + 1?"}, "expected prompt = [{role, content}, ...]"),
        (lambda row: row | {"prompt": []}, "expected prompt = [{role, content}, ...]"),
        (lambda row: row | {"prompt": [{"text": "What is 1 + 1?"}]}, "expected prompt = [{role, content}, ...]"),
        (lambda row: row | {"reward_model": {"style": "rule"}}, "reward_model = {ground_truth, ...}"),
        (lambda row: row | {"reward_model": {"ground_truth": None, "style": "rule"}}, "reward_model = {ground_truth"),
        (lambda row: row | {"data_source": None}, "a data_source in every row"),
    ],
)
def test_given_rows_that_verl_cannot_use_when_prepared_then_they_are_refused_by_column(prepare, hub, change, complaint):
    rows = [change(row) for row in published_rows(prompts=5, copies=3)]
    prepare.pins.write_text(hub.publish("train.parquet", pa.Table.from_pylist(rows), prompts=5))
    assert_refused(prepare, complaint, "train.parquet", left={PART})


@pytest.mark.parametrize(
    ("content", "rows", "prompts", "complaint"),
    [
        (None, 16, 5, "expected 16 rows, got 15"),
        (None, 15, 4, "expected 4 distinct prompts, got 5"),
        (b"PAR1 but not really PAR1", 1, 1, "expected a parquet file that can be read"),
    ],
)
def test_given_another_file_than_pinned_when_prepared_then_it_is_refused(
    prepare, hub, body, content, rows, prompts, complaint
):
    prepare.pins.write_text(hub.publish_bytes("train.parquet", content or body, rows=rows, prompts=prompts))
    assert_refused(prepare, complaint, left={PART})
