"""What may go wrong on the way from the hub."""

import hashlib
import socket

import pyarrow as pa
import pytest

from ..support.fake_hub import REVISION, parquet_bytes, published_rows
from ..support.prepare_runner import PART, assert_ready, assert_refused


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
    assert_refused(prepare, "got a file of 1000 bytes with sha256")


def test_given_a_run_that_gave_up_in_the_middle_when_run_again_then_it_continues_from_there(prepare, hub, body):
    hub.script = [hub.break_after(1000)]
    gave_up = "expected a complete download, got 1000 bytes in 1 attempts"
    assert_refused(prepare, gave_up, "run again", left={PART}, DOWNLOAD_ATTEMPTS="1")
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
    run = prepare(DOWNLOAD_STALL_TIMEOUT_S="3")
    assert run.status == 0
    assert run.log.count("no connection or no progress for too long") == 2
    assert hub.ranges == [None, *[f"bytes={cut}-" if cut else None] * 2]
    assert_ready(prepare)


def test_given_errors_when_prepared_then_it_tries_again_up_to_the_limit(prepare, hub):
    hub.script = [hub.status(503)] * 3
    said = "got 0 bytes in 3 attempts (HTTP status 503)", "set HF_ENDPOINT to a mirror"
    assert_refused(prepare, *said, DOWNLOAD_ATTEMPTS="3")
    assert len(hub.requests) == 3
    hub.script = [hub.status(503), hub.status(429), hub.status(500)]
    run = prepare()
    assert run.status == 0 and "HTTP status 429; attempt 3 of 8" in run.log
    assert_ready(prepare)


@pytest.mark.parametrize("code", [401, 403, 404])
def test_given_a_missing_or_closed_file_when_prepared_then_the_url_is_named_without_a_second_try(prepare, hub, code):
    hub.script = [hub.status(code)] * 2
    url = f"{hub.endpoint}/datasets/org/data/resolve/{REVISION}/data/train.parquet"
    assert_refused(prepare, f"train.parquet: expected the file at {url}, got HTTP status {code}; check HF_ENDPOINT")
    assert len(hub.requests) == 1


def test_given_nobody_listens_when_prepared_then_it_gives_up_after_the_limit(prepare):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert_refused(prepare, "in 2 attempts", "curl exit status 7", HF_ENDPOINT=endpoint, DOWNLOAD_ATTEMPTS="2")


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
    expected = f"train.parquet: expected sha256 {hashlib.sha256(body).hexdigest()} from {hub.endpoint}"
    found = hashlib.sha256(wrong).hexdigest() if wrong else ""
    assert_refused(prepare, expected, f"got {kind}", found, "try another one")
    assert len(hub.requests) == 1


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
    assert_refused(prepare, "got no parquet file of 26 bytes")
    assert hub.ranges == ["bytes=10-", None]


def test_given_a_complete_part_from_an_earlier_run_when_prepared_then_nothing_is_downloaded(prepare, hub, body):
    prepare.data_home.mkdir()
    (prepare.data_home / PART).write_bytes(body)
    assert prepare().status == 0
    assert hub.requests == []
    assert_ready(prepare)
