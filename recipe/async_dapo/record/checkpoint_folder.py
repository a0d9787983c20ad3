"""One checkpoint on the disk: verl's files, the pool of prompts, and the note, written last, that it is complete.

    global_step_8/
      actor/, data.pt, transfer_queue/   verl's own, as verl writes them
      async_dapo_pool.msgpack            plain data in frames: 8 bytes of length, then as many
      async_dapo_complete.json           every file with its size, and the pool's checksum

The folder may be moved and copied, and the recipe renamed: nothing in it names a class, and no place but the model's,
which is only told.
"""

import hashlib
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from .run_files import replacing
from .trained_model import TrainedModel

POOL_FILE = "async_dapo_pool.msgpack"
COMPLETE_FILE = "async_dapo_complete.json"
STEP_FOLDER = "global_step_"  # verl's name
# The remedy where a run cannot go on from a checkpoint: in its own folder the new one would be resumed from it again.
ANEW = "begin a new run with its weights, in a trainer.default_local_dir (CKPTS_DIR) of its own (docs/cluster.md)"

MODEL_PARTS = {"model": "model", "optimizer": "optim", "extra": "extra"}
_RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")  # of verl's FSDP and VeOmni

FORMAT = 9
MAX_COMPLETE_BYTES = 16 * 2**20  # the names of some hundred thousand files
_LENGTH_BYTES = 8


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be resumed from: names the path, and what is wrong with it."""


class Complete(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of `COMPLETE_FILE`."""

    format: int
    step: int
    files: dict[str, int]  # path within the folder -> bytes
    pool_blake2b: str
    has_routes: bool = False  # its trajectories have those of all tokens, else of none
    prompts: str = ""  # of the training data, as `prompts_in_words` names them
    options: dict[str, Any] = {}  # `lasting_options`
    model: TrainedModel | None = None
    extensions: tuple[str, ...] = ()  # those without which the pool's file cannot be gone on with
    run: str = ""  # that of `new_run`, the same over all its resumes


def new_run() -> str:
    """A name for a run that begins anew. Names sort by when their runs began; their ends tell two of one second."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name.

    Raises:
        DamagedCheckpoint: if it has another name.
    """
    number = folder.name.removeprefix(STEP_FOLDER)
    if number == folder.name or not (number.isascii() and number.isdecimal()):
        raise DamagedCheckpoint(f"{folder} is not named {STEP_FOLDER}<number>")
    return int(number)


def checkpoint_folders(root: Path) -> list[Path]:
    """Those that have a checkpoint's name, the newest first: by when their run began, then by their step."""
    found = []
    for folder in root.glob(f"{STEP_FOLDER}*"):
        with suppress(DamagedCheckpoint):
            found.append((run_of(folder) or "", step_of(folder), folder))
    return [folder for *_, folder in sorted(found, reverse=True)]


def run_of(folder: Path) -> str | None:
    """The run that saved a checkpoint, whatever became of its other files; None if its note cannot be read."""
    try:
        return _read_note(folder).run
    except DamagedCheckpoint:
        return None


@contextmanager
def saving(folder: Path, frames: Iterable[bytes], **noted: Any) -> Iterator[None]:
    """Write the pool, let verl write the rest, then note that all of it is there.

    A run before may have saved the same step, on other ranks: nothing of that is mixed with this one. It stays beside
    the folder until this one is complete.

    Args:
        frames: the pool; each may be as long as the prompt groups of a run are.
        noted: further fields of `Complete`.
    """
    before, note = _before(folder), folder / COMPLETE_FILE
    if folder.exists():
        if before.exists():  # a save of this step was interrupted: while it wrote, or when it was complete
            shutil.rmtree(before if note.exists() else folder)
        if not before.exists():
            folder.rename(before)
    folder.mkdir(parents=True)
    checksum = _write_pool(folder / POOL_FILE, frames)
    yield
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    complete = Complete(format=FORMAT, step=step_of(folder), files=files, pool_blake2b=checksum, **noted)
    with replacing(note) as file:
        file.write(msgspec.json.format(msgspec.json.encode(complete)))
    if before.exists():
        shutil.rmtree(before, ignore_errors=True)


def verify(folder: Path) -> Complete:
    """See that a checkpoint is complete, as far as that can be seen without unpickling verl's files.

    Raises:
        DamagedCheckpoint: naming the path and what is wrong.
    """
    complete = read_complete(folder)
    for _ in read_pool(folder):
        pass
    return complete


def read_pool(folder: Path) -> Iterator[bytes]:
    """The frames of the pool. They are known to be whole only when all have been read.

    Raises:
        DamagedCheckpoint: naming the path and what is wrong.
    """
    complete = read_complete(folder)
    path, hasher = folder / POOL_FILE, _hasher()
    try:
        with open(path, "rb") as file:
            left = complete.files[POOL_FILE]
            while left:
                head = file.read(_LENGTH_BYTES)
                size = int.from_bytes(head, "little")
                left -= _LENGTH_BYTES + size
                if left < 0:
                    raise DamagedCheckpoint(f"{path} has a frame of {size} bytes, more than are there")
                frame = file.read(size)
                hasher.update(head)
                hasher.update(frame)
                yield frame
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    if hasher.hexdigest() != complete.pool_blake2b:
        raise DamagedCheckpoint(f"{path} has another content than was written: its checksum differs")


def read_complete(folder: Path) -> Complete:
    """The note of a checkpoint whose files have the sizes that it says.

    Raises:
        DamagedCheckpoint: naming the path and what is wrong.
    """
    complete, path = _read_note(folder), folder / COMPLETE_FILE
    if POOL_FILE not in complete.files:
        raise DamagedCheckpoint(f"{path} does not name {POOL_FILE}")
    for name, size in complete.files.items():
        _check_size(folder, name, size)
    return complete


def _read_note(folder: Path) -> Complete:
    """The note of a checkpoint, whatever became of the files that it names.

    Raises:
        DamagedCheckpoint: naming the path and what is wrong.
    """
    path, step = folder / COMPLETE_FILE, step_of(folder)
    if not folder.is_dir():
        raise DamagedCheckpoint(f"{folder} does not exist")
    try:
        if not path.exists():
            before = _before(folder)
            earlier = f"; what was there before is in {before}" if before.exists() else ""
            raise DamagedCheckpoint(
                f"{folder} has no {COMPLETE_FILE}: it was not written to its end, or not by this recipe{earlier}"
            )
        if (size := path.stat().st_size) > MAX_COMPLETE_BYTES:
            raise DamagedCheckpoint(f"{path} has {size} bytes, more than {MAX_COMPLETE_BYTES}")
        complete = msgspec.json.decode(path.read_bytes(), type=Complete)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} is not what this recipe wrote: {error}") from error
    if complete.format != FORMAT:
        raise DamagedCheckpoint(
            f"{path} has format {complete.format}, this recipe reads {FORMAT}: finish that run with the recipe that "
            f"wrote it, or {ANEW}"
        )
    if complete.step != step:
        raise DamagedCheckpoint(f"{folder} was saved as {STEP_FOLDER}{complete.step}")
    return complete


def absent_parts(complete: Complete, model: str) -> list[str]:
    """What a run goes on from, and a checkpoint does not hold of a model (`save_contents`), as far as this node sees.

    Args:
        model: `actor` or `critic`, whose folder verl's training engines keep it in, by names that begin so.
    """
    names = [name.removeprefix(f"{model}/") for name in complete.files if name.startswith(f"{model}/")]
    return [part for part, begin in MODEL_PARTS.items() if names and not any(name.startswith(begin) for name in names)]


def rank_files(folder: Path) -> set[tuple[int, int]]:
    """Training ranks whose model is in a checkpoint: (number of all, rank). Megatron has no such files."""
    names = [_RANK_FILE.fullmatch(file.name) for file in (folder / "actor").glob("*.pt")]
    return {(int(name[1]), int(name[2])) for name in names if name}


def absent_ranks(folder: Path) -> list[int]:
    """Those of which a checkpoint with files of other ranks has none, as far as this node sees."""
    found = rank_files(folder)
    return sorted({rank for ranks, _ in found for rank in range(ranks)} - {rank for _, rank in found})


def _check_size(folder: Path, name: str, size: int) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise DamagedCheckpoint(f"{folder / COMPLETE_FILE} names {name}, outside of its folder")
    path = folder / relative
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DamagedCheckpoint(f"{path} is missing") from error
    if found != size:
        raise DamagedCheckpoint(f"{path} has {found} bytes, {size} were written")


def _write_pool(path: Path, frames: Iterable[bytes]) -> str:
    """Returns the checksum."""
    hasher = _hasher()
    with replacing(path) as file:
        for frame in frames:
            for part in (len(frame).to_bytes(_LENGTH_BYTES, "little"), frame):
                hasher.update(part)
                file.write(part)
    return hasher.hexdigest()


def _before(folder: Path) -> Path:
    """Where the content of a folder is while the step is saved again."""
    return folder.with_name(f"{folder.name}.before")


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
