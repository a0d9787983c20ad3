"""Settings, pins and places."""

import shutil
import sys

import pytest

from ..support.prepare_runner import REPOSITORY, SCRIPT, assert_ready, assert_refused


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"DATA_HOME": None}, "set DATA_HOME to the folder for the data"),
        ({"DATA_HOME": ""}, "set DATA_HOME to the folder for the data"),
        ({"OVERWRITE": "yes"}, "OVERWRITE=yes: must be 0 or 1"),
        ({"HF_ENDPOINT": "mirror.example"}, "HF_ENDPOINT=mirror.example: must begin with http"),
        ({"DOWNLOAD_ATTEMPTS": "0"}, "DOWNLOAD_ATTEMPTS=0: must be a number from 1"),
        ({"DOWNLOAD_STALL_TIMEOUT_S": "soon"}, "DOWNLOAD_STALL_TIMEOUT_S=soon: must be a number from 1"),
        ({"PYTHON": "no-such-python"}, "no-such-python: not found"),
    ],
)
def test_given_a_wrong_setting_when_run_then_it_is_named_before_anything_happens(prepare, hub, changes, complaint):
    run = prepare(**changes)
    assert run.status != 0
    assert complaint in run.log
    assert hub.requests == [] and not prepare.data_home.exists()


def test_given_a_python_without_pyarrow_or_an_argument_when_run_then_the_remedy_is_named(prepare, tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    run = prepare(PYTHON=str(bare))
    assert run.status == 1 and "has no pyarrow; install it with" in run.log
    assert "got the argument '--force'" in prepare("--force").log


NULLS, ZEROS = "0" * 40, "0" * 64


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (f"train.parquet org/data main data/train.parquet {ZEROS} 15 5", "table of pins, row"),
        (f"train.parquet org/data {NULLS} data/train.parquet - 15 5", "table of pins, row"),
        (f"../train.parquet org/data {NULLS} data/train.parquet {ZEROS} 15 5", "table of pins, row"),
        ("# nothing here", "expected at least one row, got none"),
    ],
    ids=["a branch instead of a commit", "no checksum", "a path as name", "no row"],
)
def test_given_a_pin_that_is_none_when_run_then_it_is_refused_without_a_request(prepare, hub, row, complaint):
    prepare.pins.write_text(row + "\n")
    assert_refused(prepare, complaint)
    assert hub.requests == []


def test_given_the_built_in_pins_when_run_then_the_publishers_file_is_asked_for_at_its_commit(prepare, hub):
    run = prepare(DAPO_DATA_PINS=None, HF_ENDPOINT=hub.endpoint + "/mirror/")
    assert run.status == 1
    commit = "65877096c24ffa7abc4e4fa5edb95cf3413a5674"
    url = f"/datasets/BytedTsinghua-SIA/DAPO-Math-17k/resolve/{commit}/data/dapo-math-17k.parquet"
    assert hub.requests == [("/mirror" + url, None)]


@pytest.mark.parametrize("place", ["at the root", "somewhere else/renamed"])
def test_given_the_script_elsewhere_when_run_from_there_then_it_works_with_a_relative_data_home(
    prepare, tmp_path, place
):
    script = REPOSITORY / SCRIPT.name
    if place != "at the root":
        script = tmp_path / place / SCRIPT.name
        script.parent.mkdir(parents=True)
        shutil.copy(SCRIPT, script)
    assert prepare(script=script, DATA_HOME=prepare.data_home.name).status == 0
    assert_ready(prepare)
