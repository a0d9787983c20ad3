"""Runs after the first one, beside another one, and after one that was killed."""

import os
import shutil
import signal
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ..support.fake_hub import REVISION, published_rows
from ..support.prepare_runner import PART, READY, RUN_TIMEOUT_S, assert_ready, assert_refused


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
    hub.script = [hub.status(404)]
    assert prepare(OVERWRITE="1").status == 1
    assert_ready(prepare)  # the good file stays
    (prepare.data_home / PART).write_bytes(b"left over")
    assert prepare(OVERWRITE="1").status == 0
    assert hub.ranges == [None, None, None]
    assert_ready(prepare)


def test_given_a_damaged_file_when_run_again_then_it_is_refused_and_overwrite_repairs_it(prepare):
    prepare()
    target = prepare.data_home / "train.parquet"
    target.write_bytes(target.read_bytes()[:-1] + b"?")
    assert_refused(prepare, f"{target}: expected sha256", "set OVERWRITE=1 to replace it", left=READY)
    assert prepare(OVERWRITE="1").status == 0
    assert_ready(prepare)


def test_given_a_file_with_repeated_prompts_under_the_final_name_when_run_then_it_is_refused_untouched(
    prepare, hub, body
):
    prepare.data_home.mkdir()
    target = prepare.data_home / "train.parquet"
    target.write_bytes(body)
    said = f"{target}: expected 5 rows, got 15; set OVERWRITE=1 to replace it, or move it away"
    assert_refused(prepare, said, left={target.name})
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
    said = f"expected one made from org/data@{'f' * 40}", f"got one made from org/data@{REVISION}"
    assert_refused(prepare, *said, "set OVERWRITE=1", left=READY)


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


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_given_a_download_in_progress_when_signalled_then_it_ends_at_once_and_a_new_run_succeeds(prepare, hub, name):
    hub.script = [hub.stall_after(1000)]
    run, number = prepare.start(), signal.Signals[name]
    assert hub.stalled.wait(RUN_TIMEOUT_S)
    if name == "SIGKILL":
        os.killpg(run.pid, number)  # its children, too
        assert prepare.finish(run).status == -number
        assert not prepare.files() & READY
    else:
        run.send_signal(number)
        assert prepare.finish(run).status == 128 + number
        assert prepare.files() <= {PART}
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
