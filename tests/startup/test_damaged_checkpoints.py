"""A damaged checkpoint is known before a cluster starts: named with its remedy, or an older complete one is taken."""

import logging
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from omegaconf import DictConfig
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.record.checkpoint_folder import (
    COMPLETE_FILE,
    FORMAT,
    POOL_FILE,
    DamagedCheckpoint,
    read_pool,
    verify,
)
from recipe.async_dapo.startup import checkpoint_to_resume
from recipe.async_dapo.startup.checkpoint_to_resume import NEWEST_FILE, check_resume
from recipe.async_dapo.startup.preflight import check_all

from ..support.checkpoints import write_checkpoint
from ..support.composed_runs import ComposeRun

Damage = Callable[[Path], Any]


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (13,)


def rewrite(name: str, **changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        note = msgspec.json.decode((folder / name).read_bytes())
        (folder / name).write_bytes(msgspec.json.encode(note | changes))

    return damage


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / POOL_FILE).read_bytes())
    content[-1] ^= 1
    (folder / POOL_FILE).write_bytes(content)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "an empty pool": (lambda f: (f / POOL_FILE).write_bytes(b""), f"{POOL_FILE} has 0 bytes, 21 were written"),
    "a truncated pool": (lambda f: os.truncate(f / POOL_FILE, 20), f"{POOL_FILE} has 20 bytes, 21 were written"),
    "another content": (flip_a_byte, f"{POOL_FILE} has another content than was written: its checksum differs"),
    "no pool": (lambda f: (f / POOL_FILE).unlink(), f"{POOL_FILE} is missing"),
    "no stored trajectories": (lambda f: shutil.rmtree(f / "transfer_queue"), r"transfer_queue/\S+ is missing"),
    "no model": (lambda f: shutil.rmtree(f / "actor"), r"actor/\S+ is missing"),
    "a truncated data loader": (lambda f: os.truncate(f / "data.pt", 1), "data.pt has 1 bytes, 6 were written"),
    "an end before the end": (
        lambda f: (f / COMPLETE_FILE).unlink(),
        f"global_step_8 has no {COMPLETE_FILE}: it was not written to its end, or not by this recipe",
    ),
    "a pickle for a pool": (
        lambda f: (f / POOL_FILE).write_bytes(pickle.dumps(Hostile())),
        rf"{POOL_FILE} has \d+ bytes, 21 were written",
    ),
    "an empty note": (lambda f: (f / COMPLETE_FILE).write_bytes(b""), f"{COMPLETE_FILE} is not what this recipe wrote"),
    "a pickle for a note": (
        lambda f: (f / COMPLETE_FILE).write_bytes(pickle.dumps(Hostile())),
        f"{COMPLETE_FILE} is not what this recipe wrote",
    ),
    "a huge note": (
        lambda f: os.truncate(f / COMPLETE_FILE, 2**40),
        f"{COMPLETE_FILE} has 1099511627776 bytes, more than",
    ),
    "an earlier format": (
        rewrite(COMPLETE_FILE, format=FORMAT - 1),
        f"{COMPLETE_FILE} has format {FORMAT - 1}, this recipe reads {FORMAT}: finish that run with the recipe that "
        "wrote it, or begin a new run with its weights",
    ),
    "another step": (rewrite(COMPLETE_FILE, step=9), "global_step_8 was saved as global_step_9"),
    "no pool in the note": (rewrite(COMPLETE_FILE, files={}), f"{COMPLETE_FILE} does not name {POOL_FILE}"),
    "files elsewhere": (
        rewrite(COMPLETE_FILE, files={POOL_FILE: 21, "../../secret": 1}),
        "names ../../secret, outside of its folder",
    ),
    "no folder": (shutil.rmtree, "global_step_8 does not exist"),
}


@pytest.fixture
def warnings_of_the_check(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(
        "WARNING", logger=checkpoint_to_resume.__name__
    ):  # vLLM's import sets the root logger to ERROR
        yield caplog


def resumed(run: ComposeRun, mode: str, root: Path, path: Path | str | None = None) -> DictConfig:
    """The trainer's options after the check."""
    named = "null" if path is None else f"'{path}'"
    options = {"resume_mode": mode, "default_local_dir": f"'{root}'", "resume_from_path": named}
    check_resume(config := run(*(f"trainer.{name}={value}" for name, value in options.items())))
    return cast(DictConfig, config.trainer)


@pytest.mark.parametrize("damage", DAMAGES)
def test_given_a_damage_when_the_checkpoint_is_named_then_the_start_is_refused_with_path_and_remedy(
    run, tmp_path, damage
):
    make, message = DAMAGES[damage]
    make(folder := write_checkpoint(tmp_path, 8))
    with pytest.raises(ConfigError, match=rf"^trainer\.resume_from_path={folder}: .*{message}.*; name a complete"):
        resumed(run, "resume_path", tmp_path, folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_given_a_damage_when_an_older_one_is_complete_then_it_is_resumed_from_and_the_log_names_both(
    run, tmp_path, warnings_of_the_check, damage
):
    make, _ = DAMAGES[damage]
    for step in (2, 4, 6, 10):  # the last is of a life before: the run was resumed from an earlier one since
        write_checkpoint(tmp_path, step)
    flip_a_byte(tmp_path / "global_step_6")
    make(newest := write_checkpoint(tmp_path, 8))
    assert resumed(run, "auto", tmp_path).resume_from_path == str(older := tmp_path / "global_step_4")
    (record,) = warnings_of_the_check.records
    assert record.levelno == logging.WARNING
    assert str(newest) in record.message and f"resuming from {older}, the newest complete one" in record.message


@pytest.mark.parametrize("noted", [b"8", b""])
def test_given_an_earlier_run_in_the_folder_when_the_newest_is_damaged_then_one_of_the_same_run_is_taken(
    run, tmp_path, noted
):
    """The earlier run has saved at other steps, which lie between those of this one, and behind them."""
    for step in (2, 6, 10):
        write_checkpoint(tmp_path, step, run="20260101T000000Z-ffffffff")
    for step in (4, 8):
        newest = write_checkpoint(tmp_path, step, run="20260102T000000Z-00000000")
    flip_a_byte(newest)
    (tmp_path / NEWEST_FILE).write_bytes(noted)
    assert resumed(run, "auto", tmp_path).resume_from_path == str(tmp_path / "global_step_4")


def test_given_only_damaged_checkpoints_when_the_newest_is_asked_for_then_nothing_starts_from_scratch(run, tmp_path):
    for step in (4, 8):
        flip_a_byte(write_checkpoint(tmp_path, step))
    config = run(f"trainer.default_local_dir={tmp_path}")
    with pytest.raises(
        ConfigError, match=r"^trainer\.default_local_dir=.*global_step_8/.* and there is no older complete checkpoint; "
    ):
        check_all(config)
    check_resume(run(f"trainer.default_local_dir={tmp_path}", "trainer.resume_mode=disable"))


@pytest.mark.parametrize("content", [None, b"", b"eight", b"8" * 100, b"-8"])
def test_given_a_damaged_note_of_the_newest_step_or_none_when_resumed_then_the_newest_complete_one_is_taken(
    run, tmp_path, warnings_of_the_check, content
):
    write_checkpoint(tmp_path, 4)
    write_checkpoint(tmp_path, 8)
    (tmp_path / NEWEST_FILE).unlink()
    if content is not None:
        (tmp_path / NEWEST_FILE).write_bytes(content)
    assert resumed(run, "auto", tmp_path).resume_from_path == str(tmp_path / "global_step_8")
    assert "the newest complete one" in warnings_of_the_check.text


def test_given_nothing_complete_and_no_note_when_started_then_the_run_begins_anew(run, tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, 4) / COMPLETE_FILE).unlink()
    (tmp_path / NEWEST_FILE).unlink()
    for root in (tmp_path, tmp_path / "missing"):
        assert resumed(run, "auto", root).resume_mode == "auto" and find_latest_ckpt_path(str(root)) is None


def test_given_complete_checkpoints_when_resumed_then_verl_finds_the_newest_also_where_they_were_moved(run, tmp_path):
    write_checkpoint(tmp_path / "old", 4)
    write_checkpoint(tmp_path / "old", 8)
    moved = (tmp_path / "old").rename(tmp_path / "moved")
    assert resumed(run, "auto", moved).resume_mode == "auto"
    assert find_latest_ckpt_path(str(moved)) == str(moved / "global_step_8")


@pytest.mark.parametrize("name", ["best", "global_step_", "global_step_4b", "step_4"])
def test_given_a_folder_with_another_name_when_it_is_named_then_it_is_refused(run, tmp_path: Path, name) -> None:
    folder = write_checkpoint(tmp_path, 4).rename(tmp_path / name)
    with pytest.raises(ConfigError, match=r"is not named global_step_<number>; name a complete checkpoint"):
        resumed(run, "resume_path", tmp_path, folder)


def test_given_a_slash_at_the_end_when_a_folder_is_named_then_verl_can_read_its_step(run, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 4)
    assert int(resumed(run, "resume_path", tmp_path, f"{folder}/").resume_from_path.split("global_step_")[-1]) == 4


@pytest.mark.parametrize("length", [100, 2**40])
def test_given_a_frame_longer_than_the_file_when_read_then_nothing_is_allocated(tmp_path, length):
    folder = write_checkpoint(tmp_path, 4)
    (folder / POOL_FILE).write_bytes(length.to_bytes(8, "little") + bytes(13))
    with pytest.raises(DamagedCheckpoint, match=f"has a frame of {length} bytes, more than are there"):
        list(read_pool(folder))


@pytest.mark.parametrize("interruptions", [0, 1, 2])
def test_given_a_step_that_another_run_has_saved_then_its_files_go_once_all_of_this_one_s_are_there(
    tmp_path, interruptions
):
    of_two_ranks = Path("actor", "model_world_size_2_rank_1.pt")
    (write_checkpoint(tmp_path, 4) / of_two_ranks).write_text("verl's")

    def frames(is_interrupted: bool) -> Iterator[bytes]:
        yield b"pool"
        assert (tmp_path / "global_step_4.before" / of_two_ranks).exists()
        if is_interrupted:
            raise OSError("no space left on device")

    for _ in range(interruptions):
        with pytest.raises(OSError, match="no space left"):
            write_checkpoint(tmp_path, 4, frames=frames(True))
        with pytest.raises(
            DamagedCheckpoint, match=r"to its end.* what was there before is in .*global_step_4\.before"
        ):
            verify(tmp_path / "global_step_4")
    verify(folder := write_checkpoint(tmp_path, 4, frames=frames(False)))
    assert not (folder / of_two_ranks).exists() and list(tmp_path.glob("global_step_*")) == [folder]


def test_given_a_save_that_ended_in_its_note_when_the_step_is_saved_again_then_that_one_is_complete(tmp_path):
    (tmp_path / "global_step_4").mkdir()
    (tmp_path / "global_step_4" / COMPLETE_FILE).with_suffix(".part").write_bytes(b"{")
    verify(write_checkpoint(tmp_path, 4))


def test_given_no_checkpoint_by_name_when_checked_then_it_is_left_to_the_rule_that_refuses_it(run) -> None:
    assert check_resume(run("trainer.resume_mode=resume_path")) == ""
