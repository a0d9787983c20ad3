"""Model, tokenizer and data of the quick start: made once, then reused by every run with the same recipe."""

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from .task import QUICK_START, TaskShape, dataset_rows

TRAIN_ROWS = 4096
VALIDATION_ROWS = 256

_SOURCES = ("task.py", "muon.py", "tiny_model.py", "model_and_data.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    folder: Path
    shape: TaskShape = QUICK_START

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def train_file(self) -> Path:
        return self.folder / "train.parquet"

    @property
    def validation_file(self) -> Path:
        return self.folder / "validation.parquet"


def prepare_assets(parent: Path, *, seed: int, shape: TaskShape = QUICK_START) -> Assets:
    """The assets under `parent`, made if they are not there (about 15 s on one free core).

    The folder's name is a hash of seed, shape and the code that makes it, and it appears in one step:
    a folder that exists is complete and up to date.
    """
    assets = Assets(folder=parent / f"assets-{fingerprint(seed, shape)}", shape=shape)
    if not assets.folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        draft = replace(assets, folder=parent / f"{assets.folder.name}.part-{os.getpid()}")
        try:
            _make(draft, seed=seed)
            _publish(draft.folder, assets.folder)
        finally:
            shutil.rmtree(draft.folder, ignore_errors=True)
    return assets


def fingerprint(seed: int, shape: TaskShape = QUICK_START) -> str:
    """Of seed, shape, and the code that makes model and data of them."""
    digest = hashlib.sha256(f"{seed} {shape}".encode())
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:12]


def _publish(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        if not target.exists():  # else another process was faster, with the same content
            raise


def write_rows(assets: Assets, *, seed: int, train: int = TRAIN_ROWS, validation: int = VALIDATION_ROWS) -> None:
    import pyarrow
    import pyarrow.parquet

    for path, count, held_out in ((assets.train_file, train, False), (assets.validation_file, validation, True)):
        rows = list(dataset_rows(count, seed=seed, held_out=held_out, shape=assets.shape))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _make(assets: Assets, *, seed: int) -> None:
    from transformers.utils.logging import disable_progress_bar

    from .tiny_model import build_model, build_tokenizer, warm_start

    disable_progress_bar()
    assets.folder.mkdir()
    write_rows(assets, seed=seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed=seed)
    warm_start(model, tokenizer, seed=seed, shape=assets.shape)
    tokenizer.save_pretrained(assets.model)
    model.save_pretrained(assets.model)
