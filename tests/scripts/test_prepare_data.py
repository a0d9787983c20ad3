"""What the prepared files hold, which downloads are refused, and runs after the first one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ..support.fake_hub import REVISION, Hub, published_rows, running_hub

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "recipe" / "async_dapo" / "prepare_dapo_data.sh"
READY = {"train.parquet"}
STAGED = {".prepare_dapo_data"}  # a file that the hub has sent


class Runner:
    """Runs the script with a clean environment; keyword arguments are environment variables, None unsets."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.data_home, self.pins = folder / "data home", folder / "pins.txt"
        self.environment: dict[str, str | None] = {
            **{name: os.environ[name] for name in ("PATH", "HOME")},
            "DATA_HOME": str(self.data_home),
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(folder / "cache"),
            "DAPO_DATA_PINS": str(self.pins),
            "PYTHON": sys.executable,
        }

    def __call__(self, *arguments: str, script: Path = SCRIPT, **changes: str | None) -> str:
        """What it says. It ends well exactly where it does not say ERROR."""
        environment = {name: value for name, value in (self.environment | changes).items() if value is not None}
        run = subprocess.run(
            ["bash", str(script), *arguments],
            env=environment,
            cwd=self.pins.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
        )
        assert (run.returncode == 0) == ("ERROR" not in run.stdout and "set DATA_HOME" not in run.stdout), run.stdout
        return run.stdout

    def files(self) -> set[str]:
        """What is in DATA_HOME, without the lock."""
        found = {path.name for path in self.data_home.iterdir()} if self.data_home.exists() else set()
        return found - {".prepare_dapo_data.lock"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def prepare(tmp_path: Path, hub: Hub) -> Runner:
    """One published file, train.parquet: 5 prompts, each 3 times."""
    runner = Runner(tmp_path, hub)
    table = pa.Table.from_pylist(published_rows(prompts=5, copies=3))
    runner.pins.write_text(hub.publish("train.parquet", table, prompts=5))
    return runner


def assert_ready(prepare: Runner, prompts: int = 5) -> None:
    """The one published file is there, each of its prompts once."""
    assert prepare.files() == READY
    rows = pq.read_table(prepare.data_home / "train.parquet").to_pylist()
    assert rows == published_rows(prompts=prompts, copies=1)


def assert_refused(prepare: Runner, *said: str, left: Set[str] = frozenset(), **changes: str | None) -> None:
    """It ends with an error that says so, and leaves these files."""
    text = prepare(**changes)
    assert "ERROR" in text and all(words in text for words in said), text
    assert prepare.files() == left


def test_given_repeated_rows_then_first_copies_stay_in_order_and_a_second_run_keeps_them_without_a_request(
    prepare, hub
):
    assert "5 prompts, ready" in prepare()
    assert_ready(prepare)
    before = (prepare.data_home / "train.parquet").stat()
    hub.requests.clear()
    assert "checked and kept" in prepare()
    assert (prepare.data_home / "train.parquet").stat() == before and hub.requests == []


def test_given_one_prompt_with_two_ground_truths_when_prepared_then_the_first_is_kept_and_the_log_counts_it(
    prepare, hub
):
    rows = published_rows(prompts=3, copies=2)
    rows[4] = rows[4] | {"reward_model": {"ground_truth": "-1", "style": "rule"}}
    prepare.pins.write_text(hub.publish("train.parquet", pa.Table.from_pylist(rows), prompts=3))
    assert "1 prompts have several ground truths, the first is kept" in prepare()
    assert_ready(prepare, prompts=3)


def without_prompt(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "prompt"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (without_prompt, "expected the columns ['data_source', 'prompt', 'reward_model']"),
        (lambda row: row | {"prompt": "What is 1 + 1?"}, "expected prompt = [{role, content}, ...]"),
        (lambda row: row | {"prompt": []}, "expected prompt = [{role, content}, ...]"),
        (lambda row: row | {"reward_model": {"style": "rule"}}, "reward_model = {ground_truth, ...}"),
        (lambda row: row | {"data_source": None}, "a data_source in every row"),
    ],
)
def test_given_rows_that_verl_cannot_use_when_prepared_then_they_are_refused_by_column(prepare, hub, change, complaint):
    rows = [change(row) for row in published_rows(prompts=5, copies=3)]
    prepare.pins.write_text(hub.publish("train.parquet", pa.Table.from_pylist(rows), prompts=5))
    assert_refused(prepare, complaint, "train.parquet", left=STAGED)


@pytest.mark.parametrize(
    ("content", "rows", "prompts", "complaint"),
    [
        (None, 16, 5, "expected 16 rows, got 15"),
        (None, 15, 4, "expected 4 distinct prompts, got 5"),
        (b"PAR1 but not really PAR1", 1, 1, "expected a parquet file that can be read"),
    ],
)
def test_given_another_file_than_pinned_when_prepared_then_it_is_refused(
    prepare, hub, content, rows, prompts, complaint
):
    body = content or next(iter(hub.files.values()))
    prepare.pins.write_text(hub.publish_bytes("train.parquet", body, rows=rows, prompts=prompts))
    assert_refused(prepare, complaint, left=STAGED)


def test_given_other_bytes_or_none_from_the_hub_then_it_is_refused_nothing_stays_and_the_next_run_succeeds(
    prepare, hub
):
    [(path, body)] = hub.files.items()
    hub.files[path] = b"<html>please log in</html>"
    assert_refused(prepare, "train.parquet: expected sha256", "got 26 bytes", "try another one")
    del hub.files[path]
    assert_refused(prepare, "train.parquet: cannot be downloaded", "404", "set HF_ENDPOINT", left=STAGED)
    hub.files[path] = body
    prepare()
    assert_ready(prepare)


def test_given_overwrite_then_the_old_file_stays_until_the_new_one_is_good(prepare, hub):
    prepare()
    [(path, body)] = hub.files.items()
    hub.files[path] = b"broken"
    assert_refused(prepare, "expected sha256", left=READY, OVERWRITE="1")
    assert_ready(prepare)
    hub.files[path] = body
    hub.requests.clear()
    assert "ready" in prepare(OVERWRITE="1") and hub.requests


@pytest.mark.parametrize("damage", ["a byte", "the published file", "another pin"])
def test_given_a_file_that_is_not_the_prepared_one_when_run_then_it_is_refused_untouched(prepare, hub, damage):
    prepare()
    target = prepare.data_home / "train.parquet"
    said = {"a byte": "expected a parquet file", "the published file": "expected 5 rows, got 15"}.get(
        damage, "made from"
    )
    if damage == "a byte":
        content = bytearray(target.read_bytes())
        content[content.index(b"What is 0")] ^= 1
        target.write_bytes(content)
    elif damage == "the published file":
        target.write_bytes(next(iter(hub.files.values())))
    else:
        prepare.pins.write_text(prepare.pins.read_text().replace(REVISION, "f" * 40))
    before = target.read_bytes()
    assert_refused(prepare, said, "set OVERWRITE=1 to replace it", left=READY)
    assert target.read_bytes() == before


def test_given_a_run_in_progress_when_a_second_starts_then_it_is_refused(prepare):
    prepare.data_home.mkdir()
    lock = prepare.data_home / ".prepare_dapo_data.lock"
    with subprocess.Popen(["flock", str(lock), "sh", "-c", "echo; read _"], stdin=-1, stdout=-1) as first:
        assert first.stdout is not None and first.stdout.readline()
        assert_refused(prepare, "another run is preparing this folder")
        first.communicate(b"\n")
    prepare()
    assert_ready(prepare)


def test_given_a_call_for_help_when_run_then_the_variables_are_explained(prepare, hub):
    assert "OVERWRITE        1 = make them again" in prepare("--help", DATA_HOME=None)
    assert hub.requests == [] and not prepare.data_home.exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"DATA_HOME": None}, "set DATA_HOME to the folder for the data"),
        ({"OVERWRITE": "yes"}, "OVERWRITE=yes: must be 0 or 1"),
        ({"DOWNLOAD_ATTEMPTS": "3"}, "DOWNLOAD_ATTEMPTS=3: is gone"),
        ({"DAPO_DATA_PINS": "/dev/null"}, "table of pins: expected rows"),
        ({"DAPO_DATA_PINS": "/dev/null/pins"}, "DAPO_DATA_PINS=/dev/null/pins: cannot be read"),
        ({"DATA_HOME": "/dev/null/data"}, "DATA_HOME=/dev/null/data: cannot be written to"),
    ],
)
def test_given_a_wrong_setting_when_run_then_it_is_named_before_anything_happens(prepare, hub, changes, complaint):
    assert complaint in prepare(**changes)
    assert hub.requests == [] and not prepare.data_home.exists()


def test_given_a_full_disk_when_run_then_it_is_named_and_the_next_run_succeeds(prepare):
    prepare.data_home.mkdir()
    (prepare.data_home / "train.parquet.part").symlink_to("/dev/full")
    said = prepare()
    assert f"ERROR: {prepare.data_home}: " in said and "No space left" in said and "make room" in said
    (prepare.data_home / "train.parquet.part").unlink(missing_ok=True)
    prepare()
    assert_ready(prepare)


def test_given_a_python_without_packages_or_an_argument_when_run_then_the_remedy_is_named(prepare, tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    assert "-m pip install huggingface_hub pyarrow" in prepare(PYTHON=str(bare))
    assert "got the argument '--force'" in prepare("--force")


@pytest.mark.parametrize(
    "change", [(REVISION, "main"), ("train.parquet org", "../train.parquet org"), (" 15 5", " 15")]
)
def test_given_a_pin_that_is_none_when_run_then_it_is_refused_without_a_request(prepare, hub, change):
    prepare.pins.write_text(prepare.pins.read_text().replace(*change))
    assert_refused(prepare, "table of pins: expected rows of file, repository, 40-digit revision")
    assert hub.requests == []


def test_given_the_built_in_pins_when_run_then_the_publishers_file_is_asked_for_at_its_commit(prepare, hub):
    assert "dapo-math-17k.parquet: cannot be downloaded" in prepare(DAPO_DATA_PINS=None)
    commit = "65877096c24ffa7abc4e4fa5edb95cf3413a5674"
    url = f"/datasets/BytedTsinghua-SIA/DAPO-Math-17k/resolve/{commit}/data/dapo-math-17k.parquet"
    assert url in hub.requests


@pytest.mark.parametrize("place", ["at the root", "somewhere else/renamed"])
def test_given_the_script_elsewhere_when_run_from_there_then_it_works_with_a_relative_data_home(
    prepare, tmp_path, place
):
    script = REPOSITORY / SCRIPT.name
    if place != "at the root":
        script = tmp_path / place / SCRIPT.name
        script.parent.mkdir(parents=True)
        shutil.copy(SCRIPT, script)
    prepare(script=script, DATA_HOME=prepare.data_home.name)
    assert_ready(prepare)
